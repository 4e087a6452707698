package bridge

import (
	"net/netip"
	"strconv"
	"testing"

	"mariposa"
	"mariposa/driver/statefile"
)

// Other instances get no addresses in the half of a network that is an engine's.
func TestAnEngineHasTheUpperHalfOfANetwork(t *testing.T) {
	t.Parallel()
	n, err := Open(Options{Dir: t.TempDir(), Scope: "n1", Subnet: netip.MustParsePrefix("10.7.0.0/16")})
	if err != nil {
		t.Fatal(err)
	}
	for block, c := range []struct {
		id     string
		shared bool
		want   int
		last   string
	}{{"alone", false, 253, "10.7.1.254/24"}, {"both", true, 126, "10.7.2.127/24"}} {
		if err := statefile.Write(n.path(c.id), networkRecord{ID: c.id, Block: block + 1, Shared: c.shared}); err != nil {
			t.Fatal(err)
		}
		p, err := n.addresses(c.id)
		if err != nil {
			t.Fatal(err)
		}
		var last netip.Prefix
		count := 0
		for ; count < 300; count++ {
			o := Owner{mariposa.ComputeKVM, c.id + strconv.Itoa(count)}
			a, err := n.assignAddress(o, c.id, p)
			if err != nil {
				break
			}
			last = a
			n.Keep(o, []Link{{Network: c.id, Address: a}})
		}
		if count != c.want || last.String() != c.last {
			t.Errorf("%s has %d addresses up to %s, want %d up to %s", c.id, count, last, c.want, c.last)
		}
	}
	if ids, err := n.Shares(); err != nil || len(ids) != 1 || ids[0] != "both" {
		t.Errorf("shared are %v, %v", ids, err)
	}
	if err := n.Unshare("both"); err != nil {
		t.Fatal(err)
	}
	if ids, err := n.Shares(); err != nil || len(ids) != 0 || n.Unshare("unknown") != nil {
		t.Errorf("shared are %v, %v", ids, err)
	}
}
