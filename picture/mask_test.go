package picture_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"mariposa"
	"mariposa/manifest"
	"mariposa/picture"
	"mariposa/seal"
	"mariposa/store"
)

func TestAMaskHidesWhatAnInstanceWasMadeWithAndAllThatItCouldReadSince(t *testing.T) {
	t.Parallel()
	st := newStore(t)
	vault := seal.NewVault(seal.NewRing(), st)
	cache := picture.NewVersionCache(st, vault)
	box, key, err := vault.NewBox("p", time.Unix(1, 0))
	if err != nil {
		t.Fatal(err)
	}
	writes := []store.Write{{Kind: mariposa.KindKey, ID: "p", Project: "p", Spec: key}}
	secrets := []string{"", "the first one", "the second one", "the third one", "the fourth one"}
	var values *manifest.Values
	for n := 1; n < len(secrets); n++ {
		if values, err = values.Set("secret", secrets[n], true, time.Unix(1, 0)); err != nil {
			t.Fatal(err)
		}
		id := mariposa.MetadataID("p", n)
		writes = append(writes,
			store.Write{Kind: mariposa.KindMetadata, ID: id, Project: "p", Spec: &mariposa.MetadataSpec{Project: "p", Number: n, Sealed: box.Seal(whole(t, values), []byte(id))}},
			store.Write{Kind: mariposa.KindVersion, ID: mariposa.VersionID("p", n), Project: "p", Spec: &mariposa.VersionSpec{Project: "p", Number: n, Metadata: n, Manifest: []byte(manifestBody)}})
	}
	commit(t, st, writes...)
	project := func(id string, number, metadata int) *store.Project {
		return &store.Project{Kind: mariposa.KindProject, ID: id, Halves: store.Halves{Spec: &mariposa.ProjectSpec{Number: number, Metadata: metadata}}}
	}
	said := strings.Join(secrets[1:], ", ")
	shown := func(metadata, number int) string {
		t.Helper()
		m, err := cache.Mask(t.Context(), project("p", metadata, metadata), &mariposa.InstanceSpec{Number: number})
		if err != nil {
			t.Fatal(err)
		}
		if again, err := cache.Mask(t.Context(), project("p", metadata, metadata), &mariposa.InstanceSpec{Number: number}); err != nil || again != m {
			t.Errorf("asked again it is another mask, %v", err)
		}
		return m.Text(said)
	}
	for _, c := range []struct {
		name             string
		metadata, number int
		want             string
	}{
		{"made from the newest", 3, 3, "the first one, the second one, ••••, the fourth one"},
		{"made from an older one", 3, 1, "••••, ••••, ••••, the fourth one"},
		{"and after one more change", 4, 1, "••••, ••••, ••••, ••••"},
		{"made from one that is forgotten", 4, 9, "the first one, the second one, the third one, ••••"},
	} {
		if got := shown(c.metadata, c.number); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
	commit(t, st, remove(mariposa.KindMetadata, mariposa.MetadataID("p", 2)))
	fresh := picture.NewVersionCache(st, vault)
	m, err := fresh.Mask(t.Context(), project("p", 4, 4), &mariposa.InstanceSpec{Number: 1})
	if err != nil || m.Text(said) != "••••, the second one, ••••, ••••" {
		t.Errorf("with values between forgotten: %s, %v", m.Text(said), err)
	}
	if m, err := fresh.Mask(t.Context(), project("q", 1, 0), &mariposa.InstanceSpec{Number: 1}); err != nil || m != nil {
		t.Errorf("a project without values: %v, %v", m, err)
	}
}

func TestValuesThatWereReplacedSinceTheProjectWasReadAreReadAnew(t *testing.T) {
	t.Parallel()
	st := newStore(t)
	vault := seal.NewVault(seal.NewRing(), st)
	box, key, err := vault.NewBox("p", time.Unix(1, 0))
	if err != nil {
		t.Fatal(err)
	}
	var none *manifest.Values
	values, err := none.Set("color", "blue", false, time.Unix(1, 0))
	if err != nil {
		t.Fatal(err)
	}
	id := mariposa.MetadataID("p", 2)
	commit(t, st,
		store.Write{Kind: mariposa.KindKey, ID: "p", Project: "p", Spec: key},
		store.Write{Kind: mariposa.KindProject, ID: "p", Spec: &mariposa.ProjectSpec{Name: "shop", Metadata: 2}},
		store.Write{Kind: mariposa.KindMetadata, ID: id, Project: "p", Spec: &mariposa.MetadataSpec{Project: "p", Number: 2, Sealed: box.Seal(whole(t, values), []byte(id))}})
	cache := picture.NewVersionCache(st, vault)
	got, _, err := cache.NewestValues(t.Context(), "p", &mariposa.ProjectSpec{Name: "shop", Metadata: 1})
	if err != nil {
		t.Fatal(err)
	}
	if color, set := got.Get("color"); !set || color.Text != "blue" {
		t.Errorf("the color is %+v", color)
	}
	commit(t, st, store.Write{Kind: mariposa.KindMetadata, ID: id, Delete: true})
	if _, _, err := picture.NewVersionCache(st, vault).NewestValues(t.Context(), "p", &mariposa.ProjectSpec{Metadata: 2}); err == nil {
		t.Error("values that are lost were read")
	}
}

// whole returns values in the format of an earlier release.
func whole(t *testing.T, v *manifest.Values) []byte {
	t.Helper()
	keys := map[string]any{}
	for _, key := range v.Keys() {
		keys[key] = map[string]any{"secret": v.ByKey[key].Secret, "cas": v.ByKey[key].CAS}
	}
	b, err := json.Marshal(map[string]any{"document": string(v.Document), "last": v.Last, "keys": keys})
	if err != nil {
		t.Fatal(err)
	}
	return b
}
