package assembly

import (
	"os"
	"testing"
)

// Instances on the machine of a control plane learn nothing from its DNS server, also if it runs in
// a user namespace and cannot tell users apart.
func TestTheControlPlaneAnswersNoInstance(t *testing.T) {
	t.Parallel()
	cfg := &DNSConfig{Refuses: func(uid int) bool { return uid >= 2000 && uid <= 2999 }}
	for uid, want := range map[int]bool{0: true, 1000: true, 999: true, 2000: false, 2999: false, overflowUID: false, 65535: false, 100_000: false, 0x7000_0000: false, os.Geteuid(): true} {
		if got := cfg.admits(uid); got != want {
			t.Errorf("uid %d may ask: %t", uid, got)
		}
	}
}
