package api_test

import (
	"strings"
	"testing"

	"mariposa"
)

func TestWhatIsWrongWithARequestIsReportedInOurWords(t *testing.T) {
	t.Parallel()
	h := newTestServer(t)
	h.create("shop", hello)
	long := strings.Repeat("x", 300)
	for _, c := range []struct {
		name, method, path, body string
		field                    string
		code                     mariposa.FaultCode
		says                     string
	}{
		{"a name that is too long", "GET", "/v1/tokens?user=" + long, "", "user", mariposa.FaultInvalid, "is too long: at most 255 characters are allowed"},
		{"a name of letters that no package has", "PUT", "/v1/packages/-", `{"name":"-","memory":1,"cpu":1}`, "package", mariposa.FaultInvalid, "must contain only letters, digits, dots and hyphens"},
		{"a text that is too short", "POST", "/v1/tokens", `{"name":""}`, "name", mariposa.FaultInvalid, "must not be empty"},
		{"a number that is too large", "GET", "/v1/instances?limit=100000", "", "limit", mariposa.FaultInvalid, "must be a number of at most 10000"},
		{"a number that is too small", "GET", "/v1/instances?limit=0", "", "limit", mariposa.FaultInvalid, "must be a number of at least 1"},
		{"no number at all", "GET", "/v1/instances?limit=many", "", "limit", mariposa.FaultInvalid, "must be a whole number"},
		{"a flag that is neither", "DELETE", "/v1/projects/shop?force=perhaps", "", "force", mariposa.FaultInvalid, "must be true or false"},
		{"a word that is none of the known ones", "GET", "/v1/instances?state=asleep", "", "state", mariposa.FaultInvalid, "must be one of pending, provisioning,"},
		{"a parameter that nobody knows", "GET", "/v1/projects?colour=red", "", "colour", mariposa.FaultUnknown, "is unknown: remove it"},
		{"a field that nobody knows", "POST", "/v1/organizations", `{"name":"acme","colour":"red"}`, "colour", mariposa.FaultUnknown, "is unknown: remove it"},
		{"a field that is missing", "POST", "/v1/organizations", `{}`, "name", mariposa.FaultMissing, "is missing"},
		{"text where a number belongs", "PUT", "/v1/packages/small", `{"name":"small","memory":"much","cpu":1}`, "memory", mariposa.FaultInvalid, "must be a whole number"},
		{"a number where text belongs", "POST", "/v1/organizations", `{"name":7}`, "name", mariposa.FaultInvalid, "must be a string"},
		{"a list where an object belongs", "POST", "/v1/organizations", `[]`, "body", mariposa.FaultSyntax, "must be an object"},
		{"what ends too early", "POST", "/v1/organizations", `{"name":`, "body", mariposa.FaultSyntax, "is incomplete JSON"},
		{"what is no JSON", "POST", "/v1/organizations", `{name}`, "body", mariposa.FaultSyntax, "is not valid JSON"},
	} {
		r := h.call(c.method, c.path, []byte(c.body))
		f := r.wantError(400, mariposa.InvalidArgument, "invalid request: "+c.field+": "+c.says)
		if len(f.Errors) != 1 || f.Errors[0].Field != c.field || f.Errors[0].Code != c.code || !strings.HasPrefix(f.Errors[0].Message, c.says) {
			t.Errorf("the faults for %s are %+v", c.name, f.Errors)
		}
		for _, theirs := range []string{"expected", "validation", "property", "schema", "unmarshal", "Go "} {
			if strings.Contains(string(r.body), theirs) {
				t.Errorf("of %s it speaks of %s: %s", c.name, theirs, r.body)
			}
		}
	}
}
