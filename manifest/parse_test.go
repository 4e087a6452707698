package manifest

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"mariposa"
)

var update = flag.Bool("update", false, "write the golden files anew")

func mustParse(t testing.TB, text string) *Project {
	t.Helper()
	p, err := Parse([]byte(text))
	if err != nil {
		t.Fatalf("%v\n%s", err, listing(err))
	}
	return p
}

func faultsOf(err error) []mariposa.Fault {
	var e *mariposa.Error
	if errors.As(err, &e) {
		return e.Faults
	}
	return nil
}

// listing formats an error as the command line does.
func listing(err error) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %v\n", mariposa.CodeOf(err), err)
	for _, f := range faultsOf(err) {
		fmt.Fprintf(&b, "%-12s %s\n", f.Code, f)
	}
	return b.String()
}

func TestFaultsReadAsTheGoldenFilesSay(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"faults", "contract", "contract-whole"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			data, err := os.ReadFile(filepath.Join("testdata", name+".yaml"))
			if err != nil {
				t.Fatal(err)
			}
			_, err = Parse(data)
			got, golden := listing(err), filepath.Join("testdata", name+".golden")
			if *update {
				if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if got != string(want) {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
		})
	}
}

// The example of the contract leaves out the service and the metadata keys it refers to,
// and shows keys of three kinds of service in one. Once completed, its only faults are
// keys that are not supported yet.
func TestTheContractsExampleMadeWholeIsOnlyNotSupportedYet(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile("testdata/contract-whole.yaml")
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(string(data), "\n")
	_, err = Parse(data)
	if len(faultsOf(err)) < 3 {
		t.Fatalf("too few faults: %v", listing(err))
	}
	for _, f := range faultsOf(err) {
		if f.Code != mariposa.FaultNotSupported {
			t.Errorf("%s: %s", f.Code, f)
		}
		path := strings.FieldsFunc(f.Field, func(r rune) bool { return r == '.' || r == '[' })
		key := path[min(2, len(path)-1)]
		if path[0] != "services" {
			key = path[min(1, len(path)-1)]
		}
		if line := lines[f.Line-1]; !strings.Contains(line, key) && !strings.Contains(f.Message, "the default") && !strings.Contains(line, path[0]) {
			t.Errorf("line %d is %q, but the fault is of %s", f.Line, line, f.Field)
		}
	}
}

func TestOmittedKeysGetTheirDefaults(t *testing.T) {
	t.Parallel()
	s := mustParse(t, "services: {web: {compute_type: dummy}}").ByName["web"]
	s.Digest = ""
	want := &mariposa.Service{
		Name: "web", Type: "continuous", Compute: mariposa.ComputeDummy,
		Grace:      30 * time.Second,
		Restart:    mariposa.Restart{Policy: mariposa.RestartNo},
		Reschedule: mariposa.Reschedule{After: time.Minute},
		Stop:       mariposa.Stop{Timeout: 10 * time.Second, PreserveStopped: "on-failure"},
		Update: mariposa.Update{
			Rolling: mariposa.Amount{N: 1}, MinHealthy: 5 * time.Second, Deadline: 10 * time.Minute,
			OnFailure: mariposa.OnFailurePause, OnMetadata: "hold",
		},
		Dummy: &mariposa.Dummy{NameLen: 32},
	}
	if !reflect.DeepEqual(s, want) {
		t.Errorf("got  %+v\nwant %+v", s, want)
	}
}

// in returns a manifest with the keys in a process named web, next to a dummy named db.
func in(keys string) string {
	return "services:\n  db: {compute_type: dummy}\n  web:\n    compute_type: process\n    command: run\n    " + strings.ReplaceAll(keys, "\n", "\n    ") + "\n"
}

func TestValuesAreReadInAllTheirForms(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, keys string
		get        func(s *mariposa.Service) any
		want       any
	}{
		{"memory in mebibytes", "memory: 512m", func(s *mariposa.Service) any { return s.Memory }, int64(512 << 20)},
		{"memory in gibibytes", "memory: 1G", func(s *mariposa.Service) any { return s.Memory }, int64(1 << 30)},
		{"memory with a fraction", "memory: 1.5k", func(s *mariposa.Service) any { return s.Memory }, int64(1536)},
		{"memory in bytes", "memory: 1000", func(s *mariposa.Service) any { return s.Memory }, int64(1000)},
		{"half a core", "cpu: 0.5", func(s *mariposa.Service) any { return s.MilliCPU }, int64(500)},
		{"whole cores", "cpu: 2", func(s *mariposa.Service) any { return s.MilliCPU }, int64(2000)},
		{"a scale of zero", "scale: 0", func(s *mariposa.Service) any { return *s.Scale }, 0},
		{"an omitted scale", "cpu: 1", func(s *mariposa.Service) any { return s.Scale == nil }, true},
		{"an environment as a list", "environment: [B=1, A=x=y, C=]", func(s *mariposa.Service) any { return s.Environment }, []mariposa.Variable{{Name: "B", Value: "1"}, {Name: "A", Value: "x=y"}, {Name: "C"}}},
		{"an environment as a map keeps its order and its texts", "environment: {B: 1.10, A: true, C: no, D: }", func(s *mariposa.Service) any { return s.Environment }, []mariposa.Variable{{Name: "B", Value: "1.10"}, {Name: "A", Value: "true"}, {Name: "C", Value: "no"}, {Name: "D"}}},
		{"labels for tags", "labels: [role=front]", func(s *mariposa.Service) any { return s.Tags }, []mariposa.Variable{{Name: "role", Value: "front"}}},
		{"ports", "ports: [8080, \"443:8443\", 53:5353]", func(s *mariposa.Service) any { return s.Ports }, []mariposa.Port{{Target: 8080}, {Host: 443, Target: 8443}, {Host: 53, Target: 5353}}},
		{"restart: no", "restart: no", func(s *mariposa.Service) any { return s.Restart.Policy }, mariposa.RestartNo},
		{"restart: false, as YAML 1.1 writers put it", "restart: false", func(s *mariposa.Service) any { return s.Restart.Policy }, mariposa.RestartNo},
		{"restart on failure", "restart: on-failure", func(s *mariposa.Service) any { return s.Restart }, mariposa.Restart{Policy: mariposa.RestartOnFailure}},
		{"restart on failure three times", "restart: on-failure:3", func(s *mariposa.Service) any { return s.Restart }, mariposa.Restart{Policy: mariposa.RestartOnFailure, Max: 3}},
		{"restart unless stopped", "restart: unless-stopped", func(s *mariposa.Service) any { return s.Restart.Policy }, mariposa.RestartUnlessStopped},
		{"reschedule", "reschedule: {after: 5}", func(s *mariposa.Service) any { return s.Reschedule }, mariposa.Reschedule{After: 5 * time.Second}},
		{"no reschedule", "reschedule: {never: true}", func(s *mariposa.Service) any { return s.Reschedule.Never }, true},
		{"a stop that waits for ever", "stop: {timeout: -1}", func(s *mariposa.Service) any { return s.Stop.Timeout < 0 }, true},
		{"a fraction of a second", "update: {min_healthy: 0.25}", func(s *mariposa.Service) any { return s.Update.MinHealthy }, 250 * time.Millisecond},
		{"rolling as a percentage", "update: {rolling: 25%}", func(s *mariposa.Service) any { return s.Update.Rolling }, mariposa.Amount{N: 25, Percent: true}},
		{"stop first", "update: {order: stop-first}", func(s *mariposa.Service) any { return s.Update.StopFirst }, true},
		{"continue on failure", "update: {on_failure: continue}", func(s *mariposa.Service) any { return s.Update.OnFailure }, mariposa.OnFailureContinue},
		{"dependencies, sorted", "depends_on: [db]", func(s *mariposa.Service) any { return s.DependsOn }, []string{"db"}},
		{"a canary", "update: {canary: 10%}", func(s *mariposa.Service) any { return s.Update.Canary }, mariposa.Amount{N: 10, Percent: true}},
		{"a rollback", "update: {on_failure: rollback}", func(s *mariposa.Service) any { return s.Update.OnFailure }, mariposa.OnFailureRollback},
		{"defaults of what is not supported yet", "update: {canary: 0, on_metadata: hold}\ncontainerpilot: false\nservice_type: continuous\nhealthchecks: []", func(s *mariposa.Service) any { return s.Type }, "continuous"},
		{"files, kept to the byte", "files:\n  /a: |\n    x\n", func(s *mariposa.Service) any { return s.Files }, []mariposa.Variable{{Name: "/a", Value: "x\n"}}},
		{"mdata with names of several parts", "mdata: {com.example:key-1_a: 1}", func(s *mariposa.Service) any { return s.Mdata }, []mariposa.Variable{{Name: "com.example:key-1_a", Value: "1"}}},
		{"a health check with defaults", "healthchecks: [{type: http, port: 80}]", func(s *mariposa.Service) any { return s.HealthChecks[0] }, mariposa.HealthCheck{
			Type: "http", Port: 80, Path: "/", Poll: 5 * time.Second, UnhealthyPoll: time.Second, Timeout: 2 * time.Second, Retries: 2, ExpectStatus: []mariposa.StatusRange{{From: 200, To: 200}},
		}},
		{"ranges of status codes", "healthchecks: [{type: https, port: 80, verify: false, expect: {status: [204, 300-399], body: /up/}}]", func(s *mariposa.Service) any { return s.HealthChecks[0] }, mariposa.HealthCheck{
			Type: "https", Port: 80, Path: "/", Insecure: true, Poll: 5 * time.Second, UnhealthyPoll: time.Second, Timeout: 2 * time.Second, Retries: 2,
			ExpectStatus: []mariposa.StatusRange{{From: 204, To: 204}, {From: 300, To: 399}}, ExpectBody: "/up/",
		}},
		{"a command as a check", "healthchecks: [{type: command, command: /bin/check -q, poll: 0.5, unhealthy_poll: 0.25, retries: 0}]", func(s *mariposa.Service) any { return s.HealthChecks[0] }, mariposa.HealthCheck{
			Type: "command", Command: []string{"/bin/check", "-q"}, Poll: 500 * time.Millisecond, UnhealthyPoll: 250 * time.Millisecond, Timeout: 500 * time.Millisecond,
		}},
		{"containerpilot", "containerpilot: {port: 9091}\ngrace: 60", func(s *mariposa.Service) any { return []any{*s.Pilot, s.Grace, s.Checks()[0].Type} }, []any{mariposa.Pilot{Port: 9091}, time.Minute, "containerpilot"}},
		{"reprovision on metadata", "update: {on_metadata: reprovision}", func(s *mariposa.Service) any { return s.Update.OnMetadata }, "reprovision"},
		{"a package", "package: small-512M", func(s *mariposa.Service) any { return s.Package }, "small-512M"},
		{"null as if left out", "memory:\ntags: ~", func(s *mariposa.Service) any { return s.Memory }, int64(0)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if got := tt.get(mustParse(t, in(tt.keys)).ByName["web"]); !reflect.DeepEqual(got, tt.want) {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}

func TestCommandsAreSplitLikeAShellWould(t *testing.T) {
	t.Parallel()
	tests := []struct {
		command string
		want    []string
	}{
		{`run --port 80`, []string{"run", "--port", "80"}},
		{`  run	x `, []string{"run", "x"}},
		{`sh -c 'echo "hi" $HOME'`, []string{"sh", "-c", `echo "hi" $HOME`}},
		{`a "b \"c\" \d" e\ f`, []string{"a", `b "c" \d`, "e f"}},
		{`a '' ""`, []string{"a", "", ""}},
		{`a'b'"c"d`, []string{"abcd"}},
		{`run --name={{ .instance.name }} x`, []string{"run", "--name={{ .instance.name }}", "x"}},
	}
	for _, tt := range tests {
		got, err := splitWords(tt.command)
		if err != nil || !slices.Equal(got, tt.want) {
			t.Errorf("%s: got %q, %v", tt.command, got, err)
		}
		if again, err := splitWords(joinWords(got)); err != nil || !slices.Equal(again, got) {
			t.Errorf("%q joined and split again is %q, %v", got, again, err)
		}
	}
	for _, command := range []string{`a 'b`, `a "b`, `a \`} {
		if words, err := splitWords(command); err == nil {
			t.Errorf("%s: got %q", command, words)
		}
	}
}

func TestComputeTypesHaveAliases(t *testing.T) {
	t.Parallel()
	for alias, want := range computeTypes {
		c := &checker{}
		d := newDraft("web", nil)
		computeType(c, rootSpot(readText(t, alias)), d)
		if d.Compute != want || len(c.faults) > 0 {
			t.Errorf("%s is %s, %v", alias, d.Compute, c.faults)
		}
	}
}

func TestEachFaultIsNamed(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, text string
		want       mariposa.Fault // Message: a substring
	}{
		{"an empty document", "\n# nothing\n", mariposa.Fault{Code: mariposa.FaultMissing, Message: "empty", Line: 3}},
		{"a list for a manifest", "- a\n", mariposa.Fault{Code: mariposa.FaultInvalid, Message: "must be a mapping", Line: 1}},
		{"a text for a manifest", "hello\n", mariposa.Fault{Code: mariposa.FaultInvalid, Message: "must be a mapping", Line: 1}},
		{"no services", "metadata: {}\n", mariposa.Fault{Field: "services", Code: mariposa.FaultMissing, Message: "is missing", Line: 1}},
		{"an unknown key", in("scal: 3"), mariposa.Fault{Field: "services.web.scal", Code: mariposa.FaultUnknown, Message: `did you mean "scale"?`, Line: 6}},
		{"a key twice", in("scale: 3\nscale: 4"), mariposa.Fault{Field: "services.web.scale", Code: mariposa.FaultDuplicate, Message: "first on line 6", Line: 7}},
		{"a service twice", "services:\n  a: {compute_type: dummy}\n  a: {compute_type: dummy}\n", mariposa.Fault{Field: "services.a", Code: mariposa.FaultDuplicate, Message: "twice", Line: 3}},
		{"a scale too large", in("scale: 99999999999999999999"), mariposa.Fault{Field: "services.web.scale", Code: mariposa.FaultInvalid, Message: "from 0 to 1000000", Line: 6}},
		{"a scale in quotes", in("scale: '3'"), mariposa.Fault{Field: "services.web.scale", Code: mariposa.FaultInvalid, Message: "whole number", Line: 6}},
		{"an unknown dependency", in("depends_on: [bd]"), mariposa.Fault{Field: "services.web.depends_on[0]", Code: mariposa.FaultUnknown, Message: `"bd", which does not exist`, Line: 6}},
		{"a self dependency", in("depends_on:\n- db\n- web"), mariposa.Fault{Field: "services.web.depends_on[1]", Code: mariposa.FaultInvalid, Message: "itself", Line: 8}},
		{"a cycle", "services:\n  web:\n    compute_type: dummy\n    depends_on: [db]\n  db:\n    compute_type: dummy\n    depends_on: [web]\n", mariposa.Fault{Field: "services.db.depends_on[0]", Code: mariposa.FaultInvalid, Message: "db -> web -> db", Line: 7}},
		{"an image of a process", in("image: x"), mariposa.Fault{Field: "services.web.image", Code: mariposa.FaultInvalid, Message: "a process has no image", Line: 6}},
		{"dummy knobs of a process", in("dummy: {}"), mariposa.Fault{Field: "services.web.dummy", Code: mariposa.FaultInvalid, Message: "compute_type dummy", Line: 6}},
		{"an entry point of a process", in("entrypoint: x"), mariposa.Fault{Field: "services.web.entrypoint", Code: mariposa.FaultInvalid, Message: "compute_type docker", Line: 6}},
		{"a process without a command", "services:\n  web:\n    compute_type: process\n", mariposa.Fault{Field: "services.web.command", Code: mariposa.FaultMissing, Message: "needs a command", Line: 2}},
		{"an unknown scope", in("environment:\n  A: x\n  B: \"{{ .instnace.name }}\""), mariposa.Fault{Field: "services.web.environment.B", Code: mariposa.FaultUnknown, Message: `did you mean "instance.name"?`, Line: 8}},
		{"a pipe in an interpolation", in("tags: [b=c, \"a={{ .scale | inc }}\"]\n"), mariposa.Fault{Field: "services.web.tags[1]", Code: mariposa.FaultInvalid, Message: "not a valid interpolation", Line: 6}},
		{"a port twice", in("ports: [80, 80]"), mariposa.Fault{Field: "services.web.ports[1]", Code: mariposa.FaultDuplicate, Message: "twice", Line: 6}},
		{"tags and labels", in("tags: {a: b}\nlabels: {a: b}"), mariposa.Fault{Field: "services.web.labels", Code: mariposa.FaultDuplicate, Message: "an alias of tags", Line: 7}},
		{"an alias", in("memory: *x"), mariposa.Fault{Code: mariposa.FaultSyntax, Message: "aliases", Line: 6}},
		{"the port of a service without", in("tags:\n  at: \"{{ .services.db.port }}\""), mariposa.Fault{Field: "services.web.tags.at", Code: mariposa.FaultInvalid, Message: "has no ports", Line: 7}},
		{"a service that is not there", in("environment:\n  A: \"{{ .services.bd.id }}\""), mariposa.Fault{Field: "services.web.environment.A", Code: mariposa.FaultUnknown, Message: `"bd", which does not exist`, Line: 7}},
		{"itself", in("environment:\n  A: \"{{ .services.web.id }}\""), mariposa.Fault{Field: "services.web.environment.A", Code: mariposa.FaultInvalid, Message: "itself", Line: 7}},
		{"a cycle of references", "services:\n  web:\n    compute_type: dummy\n    environment: {A: \"{{ .services.db.id }}\"}\n  db:\n    compute_type: dummy\n    mdata: {b: \"{{ .services.web.address }}\"}\n", mariposa.Fault{Field: "services.db.mdata.b", Code: mariposa.FaultInvalid, Message: "db -> web -> db", Line: 7}},
		{"undeclared metadata in mdata", in("mdata:\n  a: x\n  b: \"{{ .meta.color }}\"") + "metadata:\n  colour: {}\n", mariposa.Fault{Field: "services.web.mdata.b", Code: mariposa.FaultUnknown, Message: `did you mean "colour"?`, Line: 8}},
		{"undeclared metadata in a file", in("files: {/a: \"{{ .meta.color }}\"}"), mariposa.Fault{Field: "services.web.files./a", Code: mariposa.FaultUnknown, Message: "not declared", Line: 6}},
		{"a name of no service", in("tags: {a: \"{{ .cns.svc.bd }}\"}"), mariposa.Fault{Field: "services.web.tags.a", Code: mariposa.FaultUnknown, Message: `"bd", which does not exist`, Line: 6}},
		{"a name of neither service nor instance", in("tags: {a: \"{{ .cns.db }}\"}"), mariposa.Fault{Field: "services.web.tags.a", Code: mariposa.FaultUnknown, Message: `"cns.db", which does not exist`, Line: 6}},
		{"a relative file", in("files: {run/a: x}"), mariposa.Fault{Field: "services.web.files.run/a", Code: mariposa.FaultInvalid, Message: "absolute", Line: 6}},
		{"a file out of the way", in("files: {/run/../etc/passwd: x}"), mariposa.Fault{Field: "services.web.files./run/../etc/passwd", Code: mariposa.FaultInvalid, Message: "..", Line: 6}},
		{"a path in another spelling", in("files: {/run//a: x}"), mariposa.Fault{Field: "services.web.files./run//a", Code: mariposa.FaultInvalid, Message: "absolute", Line: 6}},
		{"a file twice", in("files:\n  /a: x\n  /a: y"), mariposa.Fault{Field: "services.web.files./a", Code: mariposa.FaultDuplicate, Message: "twice", Line: 8}},
		{"a file and a folder", in("files: {/run/a: x, /run/a/b/c: y}"), mariposa.Fault{Field: "services.web.files", Code: mariposa.FaultInvalid, Message: `"/run/a"`, Line: 6}},
		{"an mdata key with a slash", in("mdata: {a/b: x}"), mariposa.Fault{Field: "services.web.mdata.a/b", Code: mariposa.FaultInvalid, Message: "letters, digits", Line: 6}},
		{"an mdata key that would be hidden", in("mdata: {.a: x}"), mariposa.Fault{Field: "services.web.mdata..a", Code: mariposa.FaultInvalid, Message: "beginning with a letter", Line: 6}},
		{"an empty command", strings.Replace(in("environment: {}"), "command: run", "command: \"\"", 1), mariposa.Fault{Field: "services.web.command", Code: mariposa.FaultInvalid, Message: "must name a program", Line: 5}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, err := Parse([]byte(tt.text))
			faults := faultsOf(err)
			if len(faults) != 1 || mariposa.CodeOf(err) != mariposa.InvalidArgument {
				t.Fatalf("want one fault, got\n%s", listing(err))
			}
			f := faults[0]
			if f.Field != tt.want.Field || f.Code != tt.want.Code || f.Line != tt.want.Line || !strings.Contains(f.Message, tt.want.Message) {
				t.Errorf("got  %s %s\nwant %s %s", f.Code, f, tt.want.Code, tt.want)
			}
			if want := "the manifest has an error: " + f.String(); err.Error() != want {
				t.Errorf("message %q, want %q", err, want)
			}
		})
	}
}

func TestAnOmittedComputeTypeIsDocker(t *testing.T) {
	t.Parallel()
	m, err := Parse([]byte("services:\n  web: {image: nginx, user: 1000:web, dns: [10.0.0.2], dns_search: [example.org], entrypoint: [/init]}\n"))
	if err != nil {
		t.Fatal(listing(err))
	}
	web := m.Services[0]
	if web.Compute != mariposa.ComputeDocker || web.User != "1000:web" || len(web.DNS) != 1 || len(web.DNSSearch) != 1 {
		t.Errorf("it is %+v", web)
	}
}

// What only a container can have is refused elsewhere, and a user must look like one.
func TestKeysOfContainersAreRefusedElsewhere(t *testing.T) {
	t.Parallel()
	for _, key := range []string{"user: web", "dns: [10.0.0.2]", "dns_search: [example.org]", "entrypoint: [/init]"} {
		_, err := Parse([]byte("services:\n  web: {compute_type: process, command: [x], " + key + "}\n"))
		if faults := faultsOf(err); len(faults) != 1 || !strings.Contains(faults[0].Message, "is only allowed with compute_type docker") {
			t.Errorf("%s: %s", key, listing(err))
		}
	}
	for _, user := range []string{"''", "a b", "'web:'", "':web'", "../x", "'{{ .meta.x }}'"} {
		_, err := Parse([]byte("services:\n  web: {image: nginx, user: " + user + "}\n"))
		if faults := faultsOf(err); len(faults) != 1 || faults[0].Field != "services.web.user" {
			t.Errorf("%s: %s", user, listing(err))
		}
	}
}
