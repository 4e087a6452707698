package seal

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// What the first release made with the key that counting returns.
const (
	goldenMAC     = "107493799c6ab00e70a281d23a4aa763"
	goldenName    = "5e9b27f6648b1caf"
	goldenSealed  = "015f22587769d1215e5bd24284b34e9f70adf61183d199de96c430d38b25961f0b58"
	goldenWrapped = "019ba106e2cd4d16608c666803c4696bef18106e20539525eb71ccca468bdcba8ff16b2c8ace1b443f10d70f5cc8af90912a5b8db66aab841604643155"
)

// counting is a key that everybody knows.
func counting() []byte {
	key := make([]byte, keySize)
	for i := range key {
		key[i] = byte(i)
	}
	return key
}

func TestWhatIsSealedOpensWhereItBelongs(t *testing.T) {
	t.Parallel()
	box, other := newBox(newOuter().key), newBox(newOuter().key)
	rapid.Check(t, func(t *rapid.T) {
		plain := rapid.SliceOf(rapid.Byte()).Draw(t, "plain")
		ad := rapid.SliceOf(rapid.Byte()).Draw(t, "ad")
		sealed := box.Seal(plain, ad)

		got, err := box.Open(sealed, ad)
		if err != nil || !bytes.Equal(got, plain) {
			t.Fatalf("%x, %v", got, err)
		}
		if len(plain) >= 8 && bytes.Contains(sealed, plain) {
			t.Fatal("what is sealed can be read")
		}
		if bytes.Equal(sealed, box.Seal(plain, ad)) {
			t.Fatal("the same is sealed to the same: whoever compares learns something")
		}

		refuses := func(how string, b *Box, sealed, ad []byte) {
			got, err := b.Open(sealed, ad)
			if err == nil || len(got) > 0 {
				t.Fatalf("%s: it opens", how)
			}
		}
		refuses("another owner's box", other, sealed, ad)
		refuses("another place", box, sealed, append([]byte{1}, ad...))
		refuses("a part", box, sealed[:rapid.IntRange(0, len(sealed)-1).Draw(t, "length")], ad)
		bit := rapid.IntRange(0, len(sealed)*8-1).Draw(t, "bit")
		sealed[bit/8] ^= 1 << (bit % 8)
		refuses("a damaged bit", box, sealed, ad)
	})
}

func TestTheErrorOfOpeningShowsNothing(t *testing.T) {
	t.Parallel()
	_, err := newBox(counting()).Open([]byte("\x01the plain secret as it came, unsealed"), nil)
	if err == nil || strings.Contains(err.Error(), "secret") || !strings.Contains(err.Error(), "damaged") {
		t.Fatal(err)
	}
}

func TestADigestTellsPartsApart(t *testing.T) {
	t.Parallel()
	box := newBox(counting())
	seen := map[string][]string{}
	for _, parts := range [][]string{{}, {""}, {"", ""}, {"ab"}, {"a", "b"}, {"b", "a"}, {"ab", ""}, {"", "ab"}} {
		mac := box.MAC(parts...)
		if len(mac) != 32 || mac != box.MAC(parts...) {
			t.Fatalf("%q: %s", parts, mac)
		}
		if other, taken := seen[mac]; taken {
			t.Fatalf("%q and %q have the same digest", parts, other)
		}
		seen[mac] = parts
		if mac == newBox(newOuter().key).MAC(parts...) {
			t.Fatalf("%q: another owner has the same digest", parts)
		}
	}
}

// What is stored today must open in ten years. When this test fails, the stores
// of all users are lost: mend the code, never the test.
func TestTheFormatsStay(t *testing.T) {
	t.Parallel()
	box := newBox(counting())
	if got := box.MAC("a", "bc"); got != goldenMAC {
		t.Errorf("the digest is %s", got)
	}
	if got := outerKey(counting()).name; got != goldenName {
		t.Errorf("the name of a key is %s", got)
	}
	unhex := func(s string) []byte {
		b, err := hex.DecodeString(s)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	if plain, err := box.Open(unhex(goldenSealed), []byte("ad")); err != nil || string(plain) != "plain" {
		t.Errorf("what was sealed: %q, %v", plain, err)
	}
	inner, err := openWith(outerKey(counting()).wrap, unhex(goldenWrapped), lengthPrefixed("key", "owner", goldenName))
	if err != nil || !bytes.Equal(inner, counting()) {
		t.Errorf("what was wrapped: %v", err)
	}
}

func TestPrintingShowsNoKey(t *testing.T) {
	t.Parallel()
	ring := NewRing()
	vault := NewVault(ring, nil)
	box := newBox(counting())
	vault.remember("owner", box)
	var b strings.Builder
	slog.New(slog.NewTextHandler(&b, nil)).Info("x", "ring", ring, "vault", vault, "box", box)
	slog.New(slog.NewJSONHandler(&b, nil)).Info("x", "ring", ring, "vault", vault, "box", box)
	for _, format := range []string{"%v", "%+v", "%#v", "%s", "%x", "%d"} {
		for _, v := range []any{ring, vault, box, ring.keys(), ring.keys()[0], []any{box}} {
			fmt.Fprintf(&b, format, v)
		}
	}
	for _, key := range [][]byte{ring.keys()[0].key, box.digest} {
		for _, format := range []string{"%v", "%x", "%s", "%d"} {
			if shown := strings.Trim(fmt.Sprintf(format, key), "[]"); strings.Contains(b.String(), shown) {
				t.Errorf("a key is shown:\n%s", b.String())
			}
		}
	}
}
