package client

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"

	"mariposa"
	"mariposa/contract"
)

func TestActingForAUserGoesThroughThatUsersPaths(t *testing.T) {
	t.Parallel()
	var got []string
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		got = append(got, asked(r))
		_, _ = io.WriteString(w, "{}")
	})
	c.user = "a b"
	ctx := context.Background()
	_, err := c.Whoami(ctx)
	_, err2 := c.Project(ctx, "x")
	_, err3 := c.Health(ctx)
	want := []string{"GET /v1/users/a%20b/user", "GET /v1/users/a%20b/projects/x?organization=acme", "GET /healthz"}
	if err := errors.Join(err, err2, err3); err != nil || !slices.Equal(got, want) {
		t.Errorf("asked %q, %v", got, err)
	}
}

func TestAQuotaSendsOnlyWhatWasSaid(t *testing.T) {
	t.Parallel()
	var got []string
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		got = append(got, asked(r))
		_, _ = io.WriteString(w, `{"organization_name":"beta","used":{"projects":3}}`)
	})
	n, memory := 5, int64(1)<<40
	q, err := c.SetQuota(context.Background(), "beta", QuotaChange{Set: contract.QuotaLimits{Projects: &n, Memory: &memory}, Lift: []string{"cpu"}})
	want := []string{`PUT /v1/organizations/beta/quota application/json {"cpu":null,"memory":1099511627776,"projects":5}`}
	if err != nil || !slices.Equal(got, want) || q.Used.Projects != 3 {
		t.Errorf("asked %q, got %v, %v", got, q, err)
	}
}

func TestAnotherRootIsTrustedWhenNamed(t *testing.T) {
	t.Parallel()
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{"status":"ok"}`) }))
	srv.Config.ErrorLog = log.New(io.Discard, "", 0) // it complains of the handshake that is to fail
	srv.StartTLS()
	t.Cleanup(srv.Close)
	roots := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw})
	for _, c := range []struct {
		name  string
		roots []byte
		says  string
	}{
		{"named", roots, ""},
		{"not named", nil, "pass the CA file with --ca"},
	} {
		t.Run(c.name, func(t *testing.T) {
			cl, err := New(Options{URL: srv.URL, Roots: c.roots})
			must(t, err)
			defer cl.Close()
			_, err = cl.Health(context.Background())
			if (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
				t.Errorf("got %v", err)
			}
		})
	}
	// The certificate is not for localhost.
	cl, err := New(Options{URL: strings.Replace(srv.URL, "127.0.0.1", "localhost", 1), Roots: roots})
	must(t, err)
	defer cl.Close()
	if _, err := cl.Health(context.Background()); err == nil || !strings.Contains(err.Error(), "--url https://NAME:PORT") {
		t.Errorf("by another name: %v", err)
	}
	if _, err := New(Options{URL: srv.URL, Roots: []byte("no certificate")}); mariposa.CodeOf(err) != mariposa.InvalidArgument {
		t.Errorf("roots that are none: %v", err)
	}
}

// auditServer is a server with a number of audit records, the newest with the highest id.
func auditServer(t *testing.T, total int) *Client {
	t.Helper()
	return serve(t, func(w http.ResponseWriter, r *http.Request) {
		before, err := strconv.Atoi(r.FormValue("marker"))
		if err != nil {
			before = total + 1
		}
		limit, _ := strconv.Atoi(r.FormValue("limit"))
		var page contract.Audit
		for id := before - 1; id > 0 && len(page.Records) < limit; id-- {
			page.Records = append(page.Records, mariposa.Audit{ID: int64(id), Action: "manifest.put"})
		}
		if last := before - 1 - limit; last > 0 {
			page.Marker = strconv.Itoa(last + 1)
		}
		_ = json.NewEncoder(w).Encode(page)
	})
}

func TestAuditTurnsThePagesAsFarAsIsWanted(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ total, limit, want int }{{0, 0, 0}, {3, 0, 3}, {1201, 0, 1201}, {1201, 700, 700}, {5, 5, 5}, {3, 10, 3}} {
		page, err := auditServer(t, c.total).Audit(context.Background(), AuditFilter{Limit: c.limit})
		if err != nil || len(page.Records) != c.want {
			t.Errorf("%+v: got %d records, %v", c, len(page.Records), err)
			continue
		}
		for i, r := range page.Records {
			if r.ID != int64(c.total-i) {
				t.Errorf("%+v: record %d has id %d", c, i, r.ID)
			}
		}
		if more := c.want < c.total; more != (page.Marker != "") {
			t.Errorf("%+v: marker %q", c, page.Marker)
		}
	}
}

func TestAnExportOfTheAuditEndsWithItsErrors(t *testing.T) {
	t.Parallel()
	const one, two = `{"id":2,"action":"manifest.put"}`, `{"id":1,"action":"login"}`
	for _, c := range []struct {
		name, body string
		limit      int
		lines      []string
		fails      string
	}{
		{name: "whole", body: one + "\n" + two + "\n", lines: []string{one, two}},
		{name: "limited", body: one + "\n" + two + "\n", limit: 1, lines: []string{one}},
		{name: "broken off by the server", body: one + "\n" + `{"code":"Unavailable","message":"the store is away"}` + "\n", lines: []string{one}, fails: "the audit export is incomplete: the store is away"},
		{name: "of a stranger", body: "<html>\n", fails: "check that the URL is that of a Mariposa server"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			cl := serve(t, func(w http.ResponseWriter, r *http.Request) {
				if r.Header.Get("Accept") != "application/x-ndjson" {
					t.Errorf("asked for %q", r.Header.Get("Accept"))
				}
				_, _ = io.WriteString(w, c.body)
			})
			var lines []string
			var last error
			for line, err := range cl.ExportAudit(context.Background(), AuditFilter{Limit: c.limit}) {
				if last = err; err == nil {
					lines = append(lines, string(line))
				}
			}
			if !slices.Equal(lines, c.lines) {
				t.Errorf("got %q", lines)
			}
			if (last == nil) != (c.fails == "") || last != nil && !strings.Contains(last.Error(), c.fails) {
				t.Errorf("got %v", last)
			}
		})
	}
}
