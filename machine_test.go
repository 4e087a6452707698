package mariposa_test

import (
	"encoding/json"
	"strings"
	"testing"

	"mariposa"
)

func TestTheFactsOfAMachineAreBounded(t *testing.T) {
	t.Parallel()
	long := "\x1b[31m" + strings.Repeat("é\x00\xff", 10_000)
	m := &mariposa.Machine{Hostname: long, OS: long, Kernel: long, Arch: long, CPUModel: long, Release: long}
	for range 1000 {
		m.Disks = append(m.Disks, mariposa.Disk{Name: long, Model: long})
		m.NICs = append(m.NICs, mariposa.NIC{Name: long, MAC: long, Addresses: strings.Split(strings.Repeat(long+",", 100), ",")})
	}
	got := m.Bounded()
	b, err := json.Marshal(got)
	if err != nil || len(b) > 128<<10 || strings.ContainsAny(string(b), "\x00\x1b\uFFFD") {
		t.Errorf("%d bytes, %v", len(b), err)
	}
	if got.Hostname == "" || len(got.Hostname) > 128 || len(got.Disks) != 64 || len(got.NICs) != 32 || len(got.NICs[0].Addresses) != 16 {
		t.Errorf("got %d disks, %d interfaces, host %q", len(got.Disks), len(got.NICs), got.Hostname)
	}
	if (*mariposa.Machine)(nil).Bounded() != nil {
		t.Error("nothing became something")
	}
}
