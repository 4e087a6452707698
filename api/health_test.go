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
			Retries: 2, ExpectStatus: 204, ExpectHeaders: []mariposa.Variable{{Name: "X-Ok", Value: "yes"}}, ExpectBody: "ready",
		},
		{Type: "tcp", Port: 5432, Poll: time.Second, UnhealthyPoll: time.Second, Timeout: time.Second},
	}}
	got, err := json.Marshal(checksOf(def))
	if err != nil {
		t.Fatal(err)
	}
	const want = `[{"type":"http","port":8080,"path":"/{{ .meta.path }}","poll":5,"unhealthy_poll":0.5,"timeout":2,"retries":2,` +
		`"expect":{"status":204,"headers":{"X-Ok":"yes"},"body":"ready"}},` +
		`{"type":"tcp","port":5432,"poll":1,"unhealthy_poll":1,"timeout":1,"retries":0}]`
	if string(got) != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	for name, none := range map[string]*mariposa.Service{"a service without checks": {}, "no service at all": nil} {
		if all := checksOf(none); all == nil || len(all) != 0 {
			t.Errorf("%s has %v", name, all)
		}
	}
}
