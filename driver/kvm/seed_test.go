package kvm

import (
	"encoding/json"
	"net/netip"
	"strings"
	"testing"

	"mariposa"
	"mariposa/driver"
	"mariposa/driver/bridge"
)

// The gateway is written so that every renderer of cloud-init uses it, and root may log in if it
// has keys. Both were seen in a Debian guest.
func TestTheSeedIsUnderstoodByCloudInit(t *testing.T) {
	t.Parallel()
	address := netip.MustParsePrefix("10.1.1.2/24")
	links := []bridge.Link{{Address: address, Gateway: netip.MustParseAddr("10.1.1.1")}, {Network: "n", Address: netip.MustParsePrefix("10.1.2.2/24"), Gateway: netip.MustParseAddr("10.1.2.1")}}
	b, err := json.Marshal((&Driver{}).networkConfig(links, driver.Instance{Workload: &mariposa.Workload{DNS: []string{"10.0.0.53"}}}))
	if text := string(b); err != nil || strings.Count(text, `"gateway4":"10.1.1.1"`) != 1 || strings.Contains(text, "10.1.2.1\"") || strings.Contains(text, "routes") {
		t.Errorf("the network is %s, %v", b, err)
	}
	i := driver.Instance{Workload: &mariposa.Workload{}}
	if text := string(userData(i)); strings.Contains(text, "disable_root") {
		t.Errorf("without keys, the user data is\n%s", text)
	}
	i.Mdata.Values = []mariposa.Variable{{Name: keysKey, Value: "ssh-ed25519 AAAA me\n"}}
	if text := string(userData(i)); !strings.Contains(text, `"disable_root": false`) {
		t.Errorf("with keys, the user data is\n%s", text)
	}
}
