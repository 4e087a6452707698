package api

import (
	"encoding/json"
	"testing"
	"time"

	"mariposa"
)

func TestHealthChecksAreShownInTheWordsOfTheManifest(t *testing.T) {
	t.Parallel()
	def := &mariposa.Service{HealthChecks: []mariposa.HealthCheck{
		{
			Type: "http", Port: 8080, Path: "/{{ .meta.path }}", Poll: 5 * time.Second, UnhealthyPoll: 500 * time.Millisecond, Timeout: 2 * time.Second,
			Retries: 2, ExpectStatus: []mariposa.StatusRange{{From: 204, To: 204}, {From: 300, To: 399}}, ExpectHeaders: []mariposa.Variable{{Name: "X-Ok", Value: "yes"}}, ExpectBody: "ready",
		},
		{Type: "tcp", Port: 5432, Network: "backend", Poll: time.Second, UnhealthyPoll: time.Second, Timeout: time.Second},
		{Type: "https", Port: 443, Path: "/", Insecure: true, ExpectStatus: []mariposa.StatusRange{{From: 200, To: 200}}},
		{Type: "command", Command: []string{"/bin/check", "-v"}, User: "nobody"},
	}, Pilot: &mariposa.Pilot{Port: 9090}}
	got, err := json.Marshal(checksOf(def))
	if err != nil {
		t.Fatal(err)
	}
	const want = `[{"type":"http","name":"http :8080/{{ .meta.path }}","port":8080,"path":"/{{ .meta.path }}","poll":5,"unhealthy_poll":0.5,"timeout":2,"retries":2,` +
		`"expect":{"status":["204","300-399"],"headers":{"X-Ok":"yes"},"body":"ready"}},` +
		`{"type":"tcp","name":"tcp :5432","port":5432,"network":"backend","poll":1,"unhealthy_poll":1,"timeout":1,"retries":0},` +
		`{"type":"https","name":"https :443/","port":443,"path":"/","verify":false,"poll":0,"unhealthy_poll":0,"timeout":0,"retries":0,"expect":{"status":["200"]}},` +
		`{"type":"command","name":"command /bin/check -v","command":["/bin/check","-v"],"user":"nobody","poll":0,"unhealthy_poll":0,"timeout":0,"retries":0},` +
		`{"type":"containerpilot","name":"containerpilot :9090","port":9090,"poll":5,"unhealthy_poll":1,"timeout":2,"retries":2}]`
	if string(got) != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	for name, none := range map[string]*mariposa.Service{"a service without checks": {}, "no service at all": nil} {
		if all := checksOf(none); all == nil || len(all) != 0 {
			t.Errorf("%s has %v", name, all)
		}
	}
}
