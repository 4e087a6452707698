package bridge

import (
	"net/netip"
	"strings"
	"testing"
)

func TestBlocksOfAddresses(t *testing.T) {
	t.Parallel()
	subnet := netip.MustParsePrefix("10.7.0.0/16")
	for index, want := range map[int]string{0: "10.7.0.0/24", 1: "10.7.1.0/24", 255: "10.7.255.0/24"} {
		if got, err := block(subnet, index); err != nil || got.String() != want {
			t.Errorf("block %d is %v, %v", index, got, err)
		}
	}
	if got, err := block(subnet, 256); err == nil {
		t.Errorf("block 256 is %v", got)
	}
	if got := (Link{Address: netip.MustParsePrefix("10.7.4.9/22")}).Broadcast(); got.String() != "10.7.7.255" {
		t.Errorf("the last address is %v", got)
	}
	if p, err := chooseSubnet(7); err != nil || p.Bits() != 16 {
		t.Errorf("chosen is %v, %v", p, err)
	}
}

func TestRulesKeepNetworksApart(t *testing.T) {
	t.Parallel()
	subnet := netip.MustParsePrefix("10.7.0.0/16")
	list := []bridged{{"a", netip.MustParsePrefix("10.7.0.0/22")}, {"b", netip.MustParsePrefix("10.7.4.0/22")}}
	for text, wants := range map[string][]string{
		iptablesRules("C", subnet, list): {"*mangle\n", "-A C -i a -o a -j RETURN\n-A C -i a ! -s 10.7.0.0/22 -j DROP\n-A C -i a -j C-OUT\n-A C-OUT -o a -j DROP\n", "-A C-IN -i a -d 10.7.0.0/22 -j RETURN\n-A C-IN -i a -d 10.7.0.0/16 -j DROP\n", "-A C -i b -j C-OUT\n", "-A C-OUT -o b -j DROP\n", "-A C-OUT -o br-+ -j DROP\n-A C-OUT -o mplx-+ -j DROP\n", "-A C -o b -m conntrack --ctstate RELATED,ESTABLISHED -j RETURN\n-A C -i docker+ -o b -j DROP\n", "*filter\n", "-A C -i b -j ACCEPT\n-A C -o b -m conntrack", "-A C -s 10.7.4.0/22 ! -o b -j MASQUERADE\n"},
		nftRules("t", subnet, list):      {`iifname "a" oifname "a" accept`, `iifname "a" ip saddr != 10.7.0.0/22 drop`, `meta nfproto ipv6 drop`, `iifname { "a", "b" } oifname { "a", "b" } drop`, `iifname "docker*" oifname { "a", "b" } ct state new drop`, `iifname { "a", "b" } oifname "br-*" drop`, `iifname "b" ip daddr != 10.7.4.0/22 ip daddr 10.7.0.0/16 drop`, `ip saddr 10.7.4.0/22 oifname != "b" masquerade`},
	} {
		at := 0
		for _, want := range wants {
			n := strings.Index(text[at:], want)
			if n < 0 {
				t.Errorf("%q is not in its place in\n%s", want, text)
				break
			}
			at += n
		}
	}
}
