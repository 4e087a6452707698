package fleet_test

import (
	"encoding/json"
	"strings"
	"testing"

	"mariposa"
	"mariposa/wire"
)

// Nodes are asked what images mean. They may be hostile: only digests count as digests, and
// only of images that were asked for.
func TestANodeIsAskedWhatImagesMean(t *testing.T) {
	t.Parallel()
	h := hello("n1")
	h.Drivers = append(h.Drivers, mariposa.ComputeDocker)
	p, a := playAs(t, h)
	digest := "sha256:" + strings.Repeat("ab", 32)
	answer := func(said map[string]mariposa.ImagePin, names ...string) map[string]mariposa.ImagePin {
		t.Helper()
		got := make(chan map[string]mariposa.ImagePin, 1)
		go func() {
			got <- p.fleet.ResolveImages(p.ctx, []mariposa.Login{{Registry: "docker.io", Username: "u", Password: "p"}}, names)
		}()
		s := a.next()
		if strings.Join(s.open.Images, " ") != strings.Join(names, " ") || len(s.open.Logins) != 1 || s.open.Logins[0].Password != "p" {
			t.Errorf("asked %+v", s.open)
		}
		b, err := json.Marshal(said)
		must(t, err)
		_, err = s.Write(b)
		must(t, err)
		must(t, s.Send(wire.Message{Last: true}))
		return come(p, "the answer", got)
	}
	got := answer(map[string]mariposa.ImagePin{
		"good": {Digest: digest, Why: "no", ImageLabels: mariposa.ImageLabels{Version: "1.4\u202e\x1b[31m", Revision: strings.Repeat("f", 1000)}}, "bad": {Digest: "sha256:../../etc"}, "unknown": {Why: "it is\x1b[31m gone", ImageLabels: mariposa.ImageLabels{Version: "1"}}, "other": {Digest: digest},
	}, "good", "bad", "unknown", "silent")
	if len(got) != 4 || got["good"].Digest != digest || got["good"].Why != "" || got["good"].Version != "1.4[31m" || len(got["good"].Revision) > 200 || got["unknown"].Version != "" || got["bad"].Digest != "" || got["bad"].Why == "" ||
		got["unknown"].Digest != "" || strings.Contains(got["unknown"].Why, "\x1b") || got["silent"].Why != "its node does not know it" {
		t.Errorf("got %+v", got)
	}
}

func TestImagesAreNotResolvedWithoutANode(t *testing.T) {
	t.Parallel()
	p, _ := play(t) // it runs no containers
	if got := p.fleet.ResolveImages(p.ctx, nil, []string{"web:1"}); len(got) != 1 || got["web:1"].Why != "no node with a Docker engine is connected" {
		t.Errorf("got %+v", got)
	}
}
