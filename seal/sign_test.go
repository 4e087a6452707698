package seal_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"mariposa/seal"
	"mariposa/store/memory"

	"mariposa/clock"
)

func TestASignatureIsForOneUseAndItsParts(t *testing.T) {
	t.Parallel()
	ring, other := seal.NewRing(), seal.NewRing()
	signed := ring.Sign("test", "a", "bc")
	for name, c := range map[string]struct {
		ring      *seal.Ring
		signature string
		use       string
		parts     []string
		want      bool
	}{
		"the same":              {ring, signed, "test", []string{"a", "bc"}, true},
		"another use":           {ring, signed, "link", []string{"a", "bc"}, false},
		"other parts":           {ring, signed, "test", []string{"a", "bd"}, false},
		"parts split otherwise": {ring, signed, "test", []string{"ab", "c"}, false},
		"another ring":          {other, signed, "test", []string{"a", "bc"}, false},
		"cut off":               {ring, signed[:len(signed)-4], "test", []string{"a", "bc"}, false},
		"only the name":         {ring, strings.SplitAfter(signed, "=")[0], "test", []string{"a", "bc"}, false},
		"nothing":               {ring, "", "test", nil, false},
		"among many":            {ring, strings.Repeat("x=,", 7) + signed, "test", []string{"a", "bc"}, true},
		"among too many":        {ring, strings.Repeat("x=,", 8) + signed, "test", []string{"a", "bc"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := c.ring.Verify(c.signature, c.use, c.parts...); got != c.want {
				t.Errorf("verified: %v", got)
			}
		})
	}
}

// Two servers have the same key file. One of them rotates the key.
func TestSignaturesSurviveARotation(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "secret.key")
	open := func() *seal.Ring {
		t.Helper()
		r, err := seal.OpenRing(path)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	a, b := open(), open()
	st := memory.New(clock.Real{})
	vault := seal.NewVault(a, st)
	if err := vault.Check(t.Context(), st, clock.Real{}.Now()); err != nil {
		t.Fatal(err)
	}
	if _, _, err := vault.Rotate(t.Context(), st, nil); err != nil {
		t.Fatal(err)
	}
	if !b.Verify(a.Sign("test", "x"), "test", "x") {
		t.Error("one that has rotated is not known by the other")
	}
	old := open()
	if _, _, err := vault.Rotate(t.Context(), st, nil); err != nil {
		t.Fatal(err)
	}
	if a.Verify(old.Sign("test", "x"), "test", "x") {
		t.Error("a former key is still known")
	}
	if err := old.Reload(); err != nil || !a.Verify(old.Sign("test", "x"), "test", "x") {
		t.Errorf("not known after reading the keys again: %v", err)
	}
	if err := os.Remove(path); err != nil || old.Reload() == nil {
		t.Errorf("read keys that are gone: %v", err)
	}
}
