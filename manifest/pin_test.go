package manifest

import (
	"slices"
	"strings"
	"testing"

	"mariposa"
)

// What an image means is part of the digest of a service, and of its workload. What cannot
// move is not looked up.
func TestImagesArePinned(t *testing.T) {
	t.Parallel()
	p := mustParse(t, `services:
  web: {image: "shop/web:1.4"}
  same: {image: "shop/web:1.4", package: small}
  fixed: {image: "shop/db@sha256:`+strings.Repeat("ab", 32)+`"}
  plain: {compute_type: process, command: [sleep, "1"]}
`)
	bind := func(digest string) map[string]*mariposa.Service {
		labels := mariposa.ImageLabels{Version: "1.4", Revision: "commit of " + digest}
		pins := map[string]mariposa.ImagePin{"shop/web:1.4": {Digest: digest, ImageLabels: labels}, p.ByName["fixed"].Image: {Digest: "sha256:other", ImageLabels: labels}, "": {Digest: "sha256:none"}}
		return Bind(p, nil, map[string]mariposa.PackageSpec{"small": {Memory: 1 << 20}}, pins, nil)
	}
	none, one, two := bind(""), bind("sha256:one"), bind("sha256:two")
	for name, pinned := range map[string]bool{"web": true, "same": true, "fixed": false, "plain": false} {
		if IsPinnable(p.ByName[name]) != pinned {
			t.Errorf("%s: IsPinnable is wrong", name)
		}
		if differ := none[name].Digest != one[name].Digest && one[name].Digest != two[name].Digest; differ != pinned {
			t.Errorf("%s: the digests are %s, %s and %s", name, none[name].Digest, one[name].Digest, two[name].Digest)
		}
		w, err := Resolve(one[name], Scope{})
		if err != nil {
			t.Fatal(err)
		}
		want := p.ByName[name].Image
		if pinned {
			want += "@sha256:one"
		}
		if w.Image != want || one[name].Image != p.ByName[name].Image {
			t.Errorf("%s: the workload has image %s, and the service %s", name, w.Image, one[name].Image)
		}
	}
	if none["web"].Digest != p.ByName["web"].Digest {
		t.Error("a service without a pin has another digest than before")
	}
	diffs := Diff(p, p)
	AddImages(diffs, one, two)
	want := []FieldChange{{Field: "image.digest", Old: "sha256:one", New: "sha256:two"}, {Field: "image.revision", Old: "commit of sha256:one", New: "commit of sha256:two"}}
	for _, d := range diffs {
		switch d.Service {
		case "web", "same":
			if d.Change != Replaced || !slices.Equal(d.Fields, want) {
				t.Errorf("%s differs by %+v", d.Service, d)
			}
		default:
			if d.Change != Unchanged {
				t.Errorf("%s differs by %+v", d.Service, d)
			}
		}
	}
}

// The labels of an image that is named by its digest are shown, and change nothing else.
func TestLabelsOfAnImageNamedByItsDigestAreOnlyShown(t *testing.T) {
	t.Parallel()
	one, two := "sha256:"+strings.Repeat("1a", 32), "sha256:"+strings.Repeat("2b", 32)
	bound := func(image, digest string) (*Project, map[string]*mariposa.Service) {
		p := mustParse(t, `services: {web: {image: "`+image+`"}}`)
		return p, Bind(p, nil, nil, map[string]mariposa.ImagePin{image: {Digest: digest, ImageLabels: mariposa.ImageLabels{Version: digest[7:9]}}}, nil)
	}
	fixed, old := bound("shop/web@"+one, one)
	if w := old["web"]; w.Digest != fixed.ByName["web"].Digest || w.ImageDigest != "" || w.ImageLabels.Version != "1a" {
		t.Errorf("it is %+v", w)
	}
	if _, wrong := bound("shop/web@"+one, two); wrong["web"].ImageLabels.Version != "" {
		t.Error("it has the labels of another image")
	}
	for _, c := range []struct {
		image, digest string
		want          []FieldChange
	}{
		{"shop/web:1@" + two, two, []FieldChange{{Field: "image.digest", Old: one, New: two}, {Field: "image.version", Old: "1a", New: "2b"}}},
		{"shop/web:1", two, []FieldChange{{Field: "image.digest", Old: one, New: two}, {Field: "image.version", Old: "1a", New: "2b"}}},
		{"shop/web:1", one, nil},
	} {
		p, now := bound(c.image, c.digest)
		diffs := Diff(fixed, p)
		AddImages(diffs, old, now)
		fields := slices.DeleteFunc(diffs[0].Fields, func(f FieldChange) bool { return f.Field == "image" })
		if diffs[0].Change != Replaced || !slices.Equal(fields, c.want) {
			t.Errorf("%s: it differs by %+v", c.image, diffs[0])
		}
	}
}
