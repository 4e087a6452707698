package client

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"iter"
	"net/url"
	"strconv"
	"time"

	"mariposa"
	"mariposa/contract"
)

// AuditFilter selects audit records.
type AuditFilter struct {
	Project string
	Actor   string // name or id of the actor, or of the user acted for
	Action  string // like manifest.put; with a trailing dot, all with that prefix
	Outcome mariposa.AuditOutcome
	Since   time.Time
	Until   time.Time
	Limit   int // the newest n; 0: all
}

func (c *Client) auditQuery(f AuditFilter) url.Values {
	q := c.organizationQuery()
	setParameter(q, "project", f.Project, "actor", f.Actor, "action", f.Action, "outcome", string(f.Outcome))
	if !f.Since.IsZero() {
		q.Set("since", f.Since.UTC().Format(time.RFC3339Nano))
	}
	if !f.Until.IsZero() {
		q.Set("until", f.Until.UTC().Format(time.RFC3339Nano))
	}
	return q
}

// auditPage is the number of records per request.
const auditPage = 500

// Audit lists audit records, newest first: of a project, of the client's organization,
// or of everything that the caller can audit. It reads all pages.
func (c *Client) Audit(ctx context.Context, f AuditFilter) (*contract.Audit, error) {
	all, q := &contract.Audit{Records: []mariposa.Audit{}}, c.auditQuery(f)
	err := pages(q, func() (string, error) {
		ask := auditPage
		if f.Limit > 0 {
			ask = min(ask, f.Limit-len(all.Records))
		}
		q.Set("limit", strconv.Itoa(ask))
		page, err := send[contract.Audit](ctx, c, get("/v1/audit", q))
		if err != nil {
			return "", err
		}
		all.Records = append(all.Records, page.Records...)
		if f.Limit > 0 && len(all.Records) >= f.Limit {
			all.Records, all.Marker = all.Records[:f.Limit], page.Marker
			return "", nil
		}
		return page.Marker, nil
	})
	if err != nil {
		return nil, err
	}
	return all, nil
}

// ExportAudit iterates over all matching records, newest first, as they arrive: there
// may be millions. Each is a line of JSON as sent by the server. It stops at the first
// error.
func (c *Client) ExportAudit(ctx context.Context, f AuditFilter) iter.Seq2[json.RawMessage, error] {
	return func(yield func(json.RawMessage, error) bool) {
		r := get("/v1/audit", c.auditQuery(f))
		r.accept = "application/x-ndjson"
		res, at, err := c.open(ctx, r)
		if err != nil {
			yield(nil, err)
			return
		}
		defer res.Body.Close()
		lines, n := bufio.NewScanner(res.Body), 0
		lines.Buffer(make([]byte, 0, 64<<10), maxLine)
		for lines.Scan() {
			line := lines.Bytes()
			if len(line) == 0 {
				continue
			}
			if err := checkRecord(line); err != nil {
				yield(nil, err)
				return
			}
			if n++; !yield(append(json.RawMessage(nil), line...), nil) || n == f.Limit {
				return
			}
		}
		switch err := lines.Err(); {
		case errors.Is(err, bufio.ErrTooLong):
			yield(nil, mariposa.Errorf(mariposa.TooLarge, "the server sent an audit record larger than %d MiB", maxLine>>20))
		case err != nil:
			yield(nil, unreachable(ctx, at, err))
		}
	}
}

// checkRecord returns an error for a line that is not an audit record: a server error,
// which is the last line of an incomplete export, or the output of another server.
func checkRecord(line []byte) error {
	var doc struct {
		mariposa.Error
		Action string `json:"action"`
	}
	if err := json.Unmarshal(line, &doc); err != nil {
		return mariposa.Errorf(mariposa.Internal, "invalid audit record: check that the URL is that of a Mariposa server: %w", err)
	}
	if doc.Action == "" && doc.Code != "" {
		e := doc.Error
		e.Message = "the audit export is incomplete: " + e.Message
		return &e
	}
	return nil
}
