package client

import (
	"net/http"
	"testing"
	"time"

	"mariposa/contract"
)

func TestTheClocksOfClientAndServerAreCompared(t *testing.T) {
	t.Parallel()
	noon := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for name, c := range map[string]struct {
		header string
		took   time.Duration
		want   time.Duration
	}{
		"ahead":                       {noon.Add(3*time.Hour + time.Second).Format(time.RFC3339Nano), 2 * time.Second, 3 * time.Hour},
		"behind":                      {noon.Add(-time.Minute).Format(time.RFC3339Nano), 0, -time.Minute},
		"the round trip explains it":  {noon.Add(9 * time.Second).Format(time.RFC3339Nano), 10 * time.Second, 0},
		"a server that does not know": {"", 0, 0},
		"no time":                     {"soon", 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var s serverClock
			s.note(&http.Response{Header: http.Header{contract.TimeHeader: {c.header}}}, noon, noon.Add(c.took))
			if ahead, known := s.get(); ahead != c.want || known != (c.header != "" && c.header != "soon") {
				t.Errorf("the server is %v ahead, known: %v", ahead, known)
			}
		})
	}
}
