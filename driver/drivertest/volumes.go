package drivertest

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"mariposa"
	"mariposa/driver"
)

// provide creates a resource and returns its path.
func (b *fixture) provide(t *testing.T, r driver.Resource) string {
	t.Helper()
	path, err := b.driver.(driver.Provider).Provide(within(t), r)
	if err != nil {
		t.Fatalf("Provide: %v", err)
	}
	return path
}

func (b *fixture) withdraw(t *testing.T, r driver.Resource) error {
	t.Helper()
	return b.driver.(driver.Provider).Withdraw(within(t), r)
}

func testVolumes(t *testing.T, b *fixture)  { testResources(t, b, mariposa.KindVolume) }
func testNetworks(t *testing.T, b *fixture) { testResources(t, b, mariposa.KindNetwork) }

// testResources checks the volumes or networks of a driver, if it has any, and their
// content, if they have a path.
func testResources(t *testing.T, b *fixture, kind mariposa.Kind) {
	if _, ok := b.driver.(driver.Provider); !ok {
		return // the agent makes the same check
	}
	size := int64(1 << 20)
	if os.Geteuid() != 0 { // only root can limit a volume
		size = 0
	}
	id := driver.Resource{Kind: kind, ID: NewID(), Name: "data", Size: size}
	other := driver.Resource{Kind: kind, ID: NewID(), Name: "data", Size: size}
	path := b.provide(t, id)
	if path != "" {
		write(t, path)
	}
	if again := b.provide(t, id); again != path {
		t.Errorf("it is at %q, and then at %q", path, again)
	}
	if elsewhere := b.provide(t, other); path != "" && elsewhere == path {
		t.Errorf("two of them are at %q", path)
	}
	if err := b.driver.Close(); err != nil {
		t.Fatal(err)
	}
	b.open(t)
	p := b.driver.(driver.Provider)
	all, err := p.Provided(t.Context())
	ids := make([]string, len(all))
	for n, r := range all {
		ids[n] = r.ID
		if r.Kind != kind {
			t.Errorf("it has a resource of kind %q", r.Kind)
		}
	}
	if err != nil || path != "" && (!slices.Contains(ids, id.ID) || !slices.Contains(ids, other.ID)) {
		t.Errorf("a restarted agent finds %v, %v", ids, err)
	}
	if again := b.provide(t, id); again != path || path != "" && !written(path) {
		t.Errorf("after a restart it is at %q", again)
	}
	for range 2 { // removing a missing one is not an error
		if err := b.withdraw(t, id); err != nil {
			t.Errorf("Withdraw: %v", err)
		}
	}
	if path != "" && written(path) {
		t.Error("its content is still there")
	}
	if err := b.withdraw(t, other); err != nil {
		t.Errorf("Withdraw: %v", err)
	}
	if all, err := p.Provided(t.Context()); err != nil || len(all) != 0 {
		t.Errorf("left are %v, %v", all, err)
	}
}

func write(t *testing.T, dir string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, "precious"), []byte("data"), 0o600); err != nil {
		t.Fatal(err)
	}
}

func written(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, "precious"))
	return err == nil
}
