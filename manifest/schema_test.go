package manifest

import (
	"bytes"
	"encoding/json"
	"os"
	"slices"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v3"

	"mariposa"
)

func compiledSchema(t *testing.T) *jsonschema.Schema {
	t.Helper()
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(Schema()))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	c.DefaultDraft(jsonschema.Draft2020)
	if err := c.AddResource("manifest.json", doc); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile("manifest.json")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// accepts reports whether the only faults that Parse finds are keys that are not
// supported yet.
func accepts(text string) bool {
	_, err := Parse([]byte(text))
	return !slices.ContainsFunc(faultsOf(err), func(f mariposa.Fault) bool { return f.Code != mariposa.FaultNotSupported })
}

func TestTheSchemaAgreesWithParseOnTheShape(t *testing.T) {
	t.Parallel()
	s := compiledSchema(t)
	manifests := []struct {
		text string
		want bool
	}{
		{"services: {}", true},
		{"services: {a: {image: x}}", true},
		{in("scale: 3"), true},
		{in("memory: 512m\ncpu: 0.5\ngrace: 1.5"), true},
		{in("memory: 1024"), true},
		{in("environment: [A=1]\ntags: {a: 1, b: true, c: null}"), true},
		{in("ports: [80, \"1:2\"]\nrestart: on-failure:3\nreschedule: {never: true}"), true},
		{in("restart: false\nstop: {timeout: -1, preservestopped: always}"), true},
		{in("update: {rolling: 25%, canary: 1, order: stop-first, on_failure: rollback}"), true},
		{in("healthchecks: [{type: http, port: 80, path: /x, expect: {status: 204, headers: {A: b}, body: ok}}]"), true},
		{in("containerpilot: {port: 1}"), true},
		{"services: {a: {compute_type: vm, image: x, schedule: '0 3 * * *', service_type: scheduled}}", true},
		{"services: {a: {compute_type: dummy, dummy: {fail_prop: yes}}}", true},
		{"services: {a: {image: x}}\nmetadata: {k: {required: true, generate: 8}, l: }\nvolumes: {v: {size: 1g}}\nnetworks: {n: {}}\nload_balancers: {l: {listen: 80, service: a, port: 1}}", true},

		{"services: {}\nmetadata: {a.b: {type: integer, default: 3, pattern: '[0-9]+', description: d}, c: {choices: [1, x], default: x}, d: {secret: true, generate: 9, type: string}}", true},
		{in("mdata: {com.example.key: 1}\nfiles: {/run/a: x}\npackage: small\nupdate: {on_metadata: reprovision}"), true},

		{"{}", false},
		{"services: {}\nmetadata: {a: {type: float}}", false},
		{"services: {}\nmetadata: {a: {choices: []}}", false},
		{"services: {}\nmetadata: {a: {choices: x}}", false},
		{"services: {}\nmetadata: {a: {generate: 3, default: x}}", false},
		{"services: {}\nmetadata: {a: {generate: 3, choices: [x]}}", false},
		{"services: {}\nmetadata: {a: {generate: 3, type: boolean}}", false},
		{"services: {}\nmetadata: {a: {secret: true, default: x}}", false},
		{"services: {}\nmetadata: {a..b: {}}", false},
		{in("mdata: {a b: 1}"), false},
		{in("files: {run/a: 1}"), false},
		{in("files: {/run//a: 1}"), false},
		{"[]", false},
		{"services: []", false},
		{"services: {a: {image: x}}\nextra: 1", false},
		{"services: {a: {}}", false},
		{"services: {A: {image: x}}", false},
		{"services: {a: {compute_type: process}}", false},
		{"services: {a: {compute_type: dummy, entrypoint: x}}", false},
		{"services: {a: {image: x, schedule: '0 3 * * *'}}", false},
		{"services: {a: {image: x, dummy: {}}}", false},
		{in("image: x"), false},
		{in("scale: -1"), false},
		{in("scale: 1.5"), false},
		{in("scale: three"), false},
		{in("scal: 3"), false},
		{in("memory: 5x"), false},
		{in("cpu: much"), false},
		{in("environment: A=1"), false},
		{in("environment: [A]"), false},
		{in("environment: {A: [1]}"), false},
		{in("ports: [0]"), false},
		{in("ports: 80"), false},
		{in("ports: [a]"), false},
		{in("restart: on-failure:0"), false},
		{in("restart: maybe"), false},
		{in("stop: {timeout: -2}"), false},
		{in("stop: {wait: 2}"), false},
		{in("update: {order: any}"), false},
		{in("update: {deadline: 0}"), false},
		{in("update: {rolling: x}"), false},
		{in("depends_on: db"), false},
		{in("healthchecks: [{type: tcp, port: 80, path: /}]"), false},
		{in("healthchecks: [{type: http}]"), false},
		{in("healthchecks: [{type: udp, port: 1}]"), false},
		{in("containerpilot: yes"), false},
		{"services: {a: {image: x}}\nmetadata: {k: {required: 1}}", false},
		{"services: {a: {image: x}}\nload_balancers: {l: {listen: 80}}", false},
		{"services: {a: {image: x}}\nnetworks: {n: {driver: x}}", false},
	}
	whole, err := os.ReadFile("testdata/contract-whole.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range manifests {
		var value any
		if err := yaml.Unmarshal([]byte(m.text), &value); err != nil {
			t.Fatal(err)
		}
		asJSON, err := json.Marshal(value)
		if err != nil {
			t.Fatal(err)
		}
		doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(asJSON))
		if err != nil {
			t.Fatal(err)
		}
		err = s.Validate(doc)
		if (err == nil) != m.want {
			t.Errorf("the schema says %v of\n%s", err, m.text)
		}
		if accepts(m.text) != m.want || accepts(string(asJSON)) != m.want {
			_, err := Parse([]byte(m.text))
			t.Errorf("Parse says %v of\n%s\nor of %s", err, m.text, asJSON)
		}
	}
	if !accepts(string(whole)) {
		t.Error("Parse does not accept the whole example")
	}
}

// Both the schema and Parse list the keys. A key in only one of them is a mistake.
func TestTheSchemaHasTheKeysThatParseKnows(t *testing.T) {
	t.Parallel()
	type object struct {
		Properties map[string]object
		Defs       map[string]object `json:"$defs"`
	}
	var s object
	if err := json.Unmarshal(Schema(), &s); err != nil {
		t.Fatal(err)
	}
	service := s.Defs["service"].Properties
	for name, pair := range map[string][2][]string{
		"manifest":      {sortedKeys(s.Properties), sortedKeys(topKeys)},
		"service":       {sortedKeys(service), sortedKeys(serviceKeys)},
		"update":        {sortedKeys(service["update"].Properties), sortedKeys(updateKeys)},
		"stop":          {sortedKeys(service["stop"].Properties), sortedKeys(stopKeys)},
		"reschedule":    {sortedKeys(service["reschedule"].Properties), sortedKeys(rescheduleKeys)},
		"dummy":         {sortedKeys(service["dummy"].Properties), sortedKeys(dummyKeys)},
		"health check":  {sortedKeys(s.Defs["healthcheck"].Properties), sortedKeys(checkKeys)},
		"metadata":      {sortedKeys(s.Defs["metadata"].Properties), sortedKeys(metadataKeys)},
		"load balancer": {sortedKeys(s.Defs["load_balancer"].Properties), sortedKeys(balancerKeys)},
	} {
		if !slices.Equal(pair[0], pair[1]) {
			t.Errorf("%s: the schema has %v, Parse knows %v", name, pair[0], pair[1])
		}
	}
}
