package manifest_test

import (
	"reflect"
	"strings"
	"testing"

	"mariposa"
	"mariposa/manifest"
)

func withVolumes(t *testing.T, service string) (*mariposa.Service, error) {
	t.Helper()
	p, err := manifest.Parse([]byte("services:\n  db:\n    compute_type: dummy\n" + service + "volumes: {data: {size: 1g}, logs: , spare: {size: 5m}}\n"))
	if err != nil {
		return nil, err
	}
	return p.ByName["db"], nil
}

func TestAServiceWithVolumesStopsFirstUnlessItSaysOtherwise(t *testing.T) {
	t.Parallel()
	const volumes = "    volumes: [data:/var/lib/data, logs:/var/log:ro]\n"
	for name, c := range map[string]struct {
		service string
		want    bool
	}{
		"without volumes it starts first":         {"    scale: 1\n", false},
		"with volumes it stops first":             {volumes, true},
		"whatever else is said of updates":        {volumes + "    update: {rolling: 2}\n", true},
		"an order of nothing is none":             {volumes + "    update: {order: }\n", true},
		"who wants two on the same data gets two": {volumes + "    update: {order: start-first}\n", false},
		"an empty list of volumes is none":        {"    volumes: []\n", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, err := withVolumes(t, c.service)
			if err != nil || s.Update.StopFirst != c.want {
				t.Errorf("stop-first is %v, %v", s.Update.StopFirst, err)
			}
		})
	}
}

func TestTheOrderThatVolumesBringIsInNoDigest(t *testing.T) {
	t.Parallel()
	silent, err1 := withVolumes(t, "    volumes: [data:/d]\n")
	said, err2 := withVolumes(t, "    volumes: [data:/d]\n    update: {order: start-first}\n")
	if err1 != nil || err2 != nil || silent.Digest != said.Digest || silent.Live != said.Live {
		t.Errorf("%v, %v: %s and %s", err1, err2, silent.Digest, said.Digest)
	}
	without, err := withVolumes(t, "    scale: 1\n")
	if err != nil || without.Digest == silent.Digest {
		t.Errorf("a volume makes no new incarnation: %v", err)
	}
}

func TestASizeBelongsToTheServicesThatUseTheVolume(t *testing.T) {
	t.Parallel()
	s, err := withVolumes(t, "    volumes: [data:/d, logs:/l]\n")
	if err != nil || !reflect.DeepEqual(s.Sizes, map[string]int64{"data": 1 << 30}) {
		t.Errorf("%v, %v", s.Sizes, err)
	}
}

func TestVolumesThatCannotBeAreFaults(t *testing.T) {
	t.Parallel()
	many := "    volumes: ["
	for i := range 33 {
		many += "data:/d" + strings.Repeat("x", i+1) + ", "
	}
	for name, c := range map[string]struct{ service, says string }{
		"one that is not declared":       {"    volumes: [dota:/d]\n", `refers to "dota", which is not declared under volumes:; did you mean "data"?`},
		"two at one path":                {"    volumes: [data:/d, logs:/d]\n", `mounts a second volume at "/d"`},
		"one inside another":             {"    volumes: [data:/d, logs:/d/l]\n", "one cannot be inside the other"},
		"one around another":             {"    volumes: [data:/d/l, logs:/d]\n", "one cannot be inside the other"},
		"too many":                       {many + "]\n", "the limit of 32 volumes"},
		"a process that only reads":      {"    volumes: [data:/d:ro]\n    command: [x]\n", "a process cannot have a read-only volume"},
		"a path that leads nowhere good": {"    volumes: [data:/../d]\n", "must be a volume and a path"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if strings.Contains(c.service, "command") {
				c.service = "    environment: {A: b}\n" + c.service
			}
			doc := "services:\n  db:\n    compute_type: dummy\n" + c.service + "volumes: {data: , logs: }\n"
			if strings.Contains(c.service, "command") {
				doc = strings.Replace(doc, "dummy", "process", 1)
			}
			_, err := manifest.Parse([]byte(doc))
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("says %v", err)
			}
		})
	}
}

func TestASingleInstanceHasNoVolumes(t *testing.T) {
	t.Parallel()
	p, err := manifest.Parse([]byte("services: {}\nvolumes: {data: }\n"))
	if err != nil {
		t.Fatal(err)
	}
	_, err = manifest.ParseService("probe", []byte(`{"compute_type": "dummy", "volumes": ["data:/d"]}`), p)
	if err == nil || !strings.Contains(err.Error(), "not allowed for a single instance") {
		t.Errorf("says %v", err)
	}
}
