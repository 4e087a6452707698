package manifest

import (
	"fmt"
	"maps"
	"math/rand"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"mariposa"
)

// full is a service with something in every field.
func full(compute mariposa.ComputeType) *mariposa.Service {
	scale := 3
	return &mariposa.Service{
		Name: "web", Type: "continuous", Compute: compute, Image: "a", Scale: &scale, Package: "small", Memory: 1, MilliCPU: 1,
		Command: []string{"a"}, Entrypoint: []string{"a"},
		Environment: []mariposa.Variable{{Name: "A", Value: "1"}}, Mdata: []mariposa.Variable{{Name: "A", Value: "1"}},
		Files: []mariposa.Variable{{Name: "/a", Value: "1"}}, Tags: []mariposa.Variable{{Name: "a", Value: "1"}},
		Affinity: []string{"a==b"}, Ports: []mariposa.Port{{Host: 1, Target: 2}}, DNS: []string{"1.1.1.1"}, DNSSearch: []string{"a.b"},
		Volumes: []string{"a:/a"}, Networks: []string{"a"}, DependsOn: []string{"db"}, HealthChecks: []mariposa.HealthCheck{{Type: "tcp", Port: 1}},
		Pilot: &mariposa.Pilot{Port: 9090}, Grace: time.Second, Restart: mariposa.Restart{Policy: mariposa.RestartNo}, Schedule: "* * * * *",
		Reschedule: mariposa.Reschedule{After: time.Second}, Stop: mariposa.Stop{Timeout: time.Second}, Update: mariposa.Update{Rolling: mariposa.Amount{N: 1}},
		Dummy: &mariposa.Dummy{NameLen: 32, UpdateInPlaceProp: "a", MaxWait: time.Second, Wait: time.Second},
	}
}

// changes changes each field of a service once, by the effect that the change must have.
var changes = map[effect]map[string]func(s *mariposa.Service){
	replaces: {
		"service_type":           func(s *mariposa.Service) { s.Type = "event" },
		"compute_type":           func(s *mariposa.Service) { s.Compute = "other" },
		"image":                  func(s *mariposa.Service) { s.Image += "b" },
		"package":                func(s *mariposa.Service) { s.Package += "b" },
		"command":                func(s *mariposa.Service) { s.Command = append(s.Command, "b") },
		"command split":          func(s *mariposa.Service) { s.Command = []string{"a", ""} },
		"entrypoint":             func(s *mariposa.Service) { s.Entrypoint = nil },
		"environment value":      func(s *mariposa.Service) { s.Environment[0].Value += "1" },
		"environment name":       func(s *mariposa.Service) { s.Environment[0].Name += "1" },
		"an empty variable":      func(s *mariposa.Service) { s.Environment = append(s.Environment, mariposa.Variable{Name: "B"}) },
		"files":                  func(s *mariposa.Service) { s.Files[0].Value += "1" },
		"tags":                   func(s *mariposa.Service) { s.Tags = nil },
		"affinity":               func(s *mariposa.Service) { s.Affinity[0] += "b" },
		"a host port":            func(s *mariposa.Service) { s.Ports[0].Host = 0 },
		"a target port":          func(s *mariposa.Service) { s.Ports[0].Target++ },
		"dns":                    func(s *mariposa.Service) { s.DNS = append(s.DNS, "2.2.2.2") },
		"dns_search":             func(s *mariposa.Service) { s.DNSSearch[0] += "c" },
		"volumes":                func(s *mariposa.Service) { s.Volumes = nil },
		"networks":               func(s *mariposa.Service) { s.Networks[0] += "b" },
		"containerpilot":         func(s *mariposa.Service) { s.Pilot = nil },
		"containerpilot.network": func(s *mariposa.Service) { s.Pilot.Network = "a" },
		"dummy.name_len":         func(s *mariposa.Service) { s.Dummy.NameLen++ },
		"dummy.fail_prop":        func(s *mariposa.Service) { s.Dummy.Fail = true },
		"dummy.max_wait_secs":    func(s *mariposa.Service) { s.Dummy.MaxWait++ },
		"dummy.wait_secs":        func(s *mariposa.Service) { s.Dummy.Wait = 0 },
	},
	live: {
		"dummy.update_in_place_prop": func(s *mariposa.Service) { s.Dummy.UpdateInPlaceProp += "b" },
	},
	leavesRunning: {
		"scale":                func(s *mariposa.Service) { *s.Scale++ },
		"no scale":             func(s *mariposa.Service) { s.Scale = nil },
		"mdata":                func(s *mariposa.Service) { s.Mdata[0].Value += "1" },
		"healthchecks":         func(s *mariposa.Service) { s.HealthChecks[0].Port++ },
		"healthchecks.network": func(s *mariposa.Service) { s.HealthChecks[0].Network = "a" },
		"healthchecks.command": func(s *mariposa.Service) { s.HealthChecks[0].Command = []string{"a"} },
		"healthchecks.user":    func(s *mariposa.Service) { s.HealthChecks[0].User = "a" },
		"healthchecks.verify":  func(s *mariposa.Service) { s.HealthChecks[0].Insecure = true },
		"healthchecks.status": func(s *mariposa.Service) {
			s.HealthChecks[0].ExpectStatus = []mariposa.StatusRange{{From: 200, To: 299}}
		},
		"restart":    func(s *mariposa.Service) { s.Restart.Max++ },
		"reschedule": func(s *mariposa.Service) { s.Reschedule.Never = true },
		"stop":       func(s *mariposa.Service) { s.Stop.Timeout++ },
		"update":     func(s *mariposa.Service) { s.Update.StopFirst = true },
		"grace":      func(s *mariposa.Service) { s.Grace++ },
		"depends_on": func(s *mariposa.Service) { s.DependsOn = nil },
		"schedule":   func(s *mariposa.Service) { s.Schedule = "" },
	},
}

func TestEachFieldCountsTowardsItsDigest(t *testing.T) {
	t.Parallel()
	for _, compute := range []mariposa.ComputeType{mariposa.ComputeDocker, mariposa.ComputeProcess, mariposa.ComputeBalancer, mariposa.ComputeDummy} {
		digest, inPlace := digests(full(compute))
		want := maps.Clone(changes[replaces])
		inLive := maps.Clone(changes[live])
		sizes := want
		if compute == mariposa.ComputeDocker || compute == mariposa.ComputeBalancer {
			sizes = inLive
		}
		sizes["memory"] = func(s *mariposa.Service) { s.Memory++ }
		sizes["cpu"] = func(s *mariposa.Service) { s.MilliCPU++ }
		for effect, fields := range map[effect]map[string]func(*mariposa.Service){replaces: want, live: inLive, leavesRunning: changes[leavesRunning]} {
			for name, change := range fields {
				s := full(compute)
				change(s)
				d, l := digests(s)
				if (d != digest) != (effect == replaces) {
					t.Errorf("%s, %s: digest changes: %v", compute, name, d != digest)
				}
				if effect != replaces && (l != inPlace) != (effect == live) {
					t.Errorf("%s, %s: live changes: %v", compute, name, l != inPlace)
				}
			}
		}
	}
}

// Digests must not change between releases: otherwise an upgrade would replace every
// instance of every project.
func TestDigestsNeverChangeBetweenReleases(t *testing.T) {
	t.Parallel()
	digest, inPlace := digests(full(mariposa.ComputeDummy))
	if want := "2ce53921df7f3ea8043d966904aff5b8"; digest != want {
		t.Errorf("digest %s, want %s", digest, want)
	}
	if want := "0134aecbfe79c01dd29944fa1e1d932d"; inPlace != want {
		t.Errorf("live %s, want %s", inPlace, want)
	}
	if len(digest) != 32 {
		t.Errorf("digest has %d digits", len(digest))
	}
	if _, none := digests(&mariposa.Service{Compute: mariposa.ComputeProcess}); none != "" {
		t.Error("a process has nothing live")
	}
}

func TestTheOrderOfKeysDoesNotChangeTheDigest(t *testing.T) {
	t.Parallel()
	lines := []string{
		"command: [run, x]", "environment: {A: 1, B: 2, C: \"{{ .scale }}\"}", "tags: {a: b, c: d}", "ports: [80, \"81:82\"]", "memory: 1g", "cpu: 1", "scale: 2", "restart: always",
	}
	shuffled := append([]string{}, lines...)
	shuffled[1], shuffled[2], shuffled[3] = "environment: [\"C={{ .scale }}\", B=2, A=1]", "labels: [c=d, a=b]", "ports: [\"81:82\", 80]"
	text := func(lines []string) string {
		return "services:\n  web:\n    compute_type: process\n    " + strings.Join(lines, "\n    ") + "\n"
	}
	want := mustParse(t, text(lines)).ByName["web"].Digest
	rapid.Check(t, func(t *rapid.T) {
		r := rand.New(rand.NewSource(rapid.Int64().Draw(t, "seed")))
		some := slices.Clone(shuffled)
		r.Shuffle(len(some), func(i, j int) { some[i], some[j] = some[j], some[i] })
		p, err := Parse([]byte(text(some)))
		if err != nil || p.ByName["web"].Digest != want {
			t.Fatalf("%v: %v", some, err)
		}
	})
}

func TestDifferentDefinitionsAreNeverWrittenAlike(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		words := rapid.SliceOfN(rapid.SampledFrom([]string{"", "a", "1:a", "a\n", "7:command", ":"}), 1, 4)
		a, b := words.Draw(t, "a"), words.Draw(t, "b")
		da, _ := digests(&mariposa.Service{Command: a})
		db, _ := digests(&mariposa.Service{Command: b})
		if (da == db) != slices.Equal(a, b) {
			t.Fatalf("%q and %q: %s and %s", a, b, da, db)
		}
	})
}

func TestDiffSaysWhatBecomesOfEachService(t *testing.T) {
	t.Parallel()
	dummies := func(format string, args ...any) *Project {
		return mustParse(t, "services:\n  db: {compute_type: dummy}\n"+fmt.Sprintf(format, args...))
	}
	web := func(keys string) *Project { return dummies("  web: {compute_type: dummy, %s}\n", keys) }
	tests := []struct {
		name     string
		old, new *Project
		want     string
	}{
		{"a first version", nil, dummies(""), "db create []"},
		{"the last of a project", dummies(""), nil, "db delete []"},
		{"a new service", dummies(""), web("scale: 1"), "db unchanged [] web create []"},
		{"a removed service", web("scale: 1"), dummies(""), "db unchanged [] web delete []"},
		{"the same", web("scale: 1"), web("scale: 1"), "db unchanged [] web unchanged []"},
		{"another scale", web("scale: 1"), web("scale: 3"), "db unchanged [] web scale [{scale 1 3}]"},
		{"a scale given up", web("scale: 1"), web("reschedule: {after: 60}"), "db unchanged [] web unchanged []"},
		{"another image", web("image: a"), web("image: b, scale: 2"), "db unchanged [] web replace [{image a b} {scale  2}]"},
		{"another variable", web("environment: [A=1, B=2]"), web("environment: [A=1, C=3]"), "db unchanged [] web replace [{environment.B 2 } {environment.C  3}]"},
		{"another command", web("command: [a, b c]"), web("command: a 'b c' d"), "db unchanged [] web replace [{command a 'b c' a 'b c' d}]"},
		{"half the cores", web("cpu: 1"), web("cpu: 0.5"), "db unchanged [] web replace [{cpu 1 0.5}]"},
		{"a live knob", web("dummy: {update_in_place_prop: a}"), web("dummy: {update_in_place_prop: b}"), "db unchanged [] web update [{dummy.update_in_place_prop a b}]"},
		{"another policy", web("restart: no"), web("restart: on-failure:3, scale: 2"), "db unchanged [] web update [{restart no on-failure:3} {scale  2}]"},
		{"another dependency", web("scale: 1"), web("scale: 1, depends_on: [db]"), "db unchanged [] web update [{depends_on  db}]"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var got []string
			diffs := Diff(tt.old, tt.new)
			for _, d := range diffs {
				got = append(got, fmt.Sprint(d.Service, " ", d.Change, " ", d.Fields))
			}
			if s := strings.Join(got, " "); s != tt.want {
				t.Errorf("got  %s\nwant %s", s, tt.want)
			}
			if changed := Changed(diffs); len(changed) != strings.Count(tt.want, "create")+strings.Count(tt.want, "delete")+strings.Count(tt.want, "scale [")+strings.Count(tt.want, "replace")+strings.Count(tt.want, "update [") {
				t.Errorf("changed %v", changed)
			}
		})
	}
}
