package client

import (
	"context"
	"encoding/json"
	"net/url"
	"strconv"
	"strings"
	"time"

	"mariposa/contract"
)

// Event is one change. Its object is kept undecoded; the methods decode it.
type Event struct {
	contract.Event
	Object json.RawMessage `json:"object"`
}

// Events is a part of the feed.
type Events struct {
	Events   []Event `json:"events"`
	Revision int64   `json:"revision"`
	More     bool    `json:"more,omitempty"`   // for a list since a revision: there may be more events after Revision
	Before   int64   `json:"before,omitempty"` // for a list before a revision: there may be more events before this one
}

// Subject is the first half of the kind: instance, task, project, version or node.
func (e Event) Subject() string {
	subject, _, _ := strings.Cut(e.Kind, ".")
	return subject
}

// Verb is the second half of the kind: what happened.
func (e Event) Verb() string {
	_, verb, _ := strings.Cut(e.Kind, ".")
	return verb
}

// AsTask returns the task of an event; nil for other events, and when the event does
// not carry it.
func (e Event) AsTask() *contract.Task { return object[contract.Task](e, "task") }

// AsInstance returns the instance of an event, or nil.
func (e Event) AsInstance() *contract.Instance { return object[contract.Instance](e, "instance") }

// AsNode returns the node of an event, or nil.
func (e Event) AsNode() *contract.Node { return object[contract.Node](e, "node") }

// AsVolume returns the volume of an event, or nil.
func (e Event) AsVolume() *contract.Volume { return object[contract.Volume](e, "volume") }

// AsNetwork returns the network of an event, or nil.
func (e Event) AsNetwork() *contract.Network { return object[contract.Network](e, "network") }

// AsVersion returns the version of an event, or nil.
func (e Event) AsVersion() *contract.Version { return object[contract.Version](e, "version") }

func object[T any](e Event, subject string) *T {
	if e.Subject() != subject || len(e.Object) == 0 || string(e.Object) == "null" {
		return nil
	}
	o := new(T)
	if json.Unmarshal(e.Object, o) != nil {
		return nil // perhaps from a newer server; the rest of the event is still useful
	}
	return o
}

// EventFilter selects a part of the feed.
type EventFilter struct {
	Since   int64     // only events after this revision
	From    time.Time // only events since this time; zero: use Since
	Before  int64     // only events before this revision, the newest ones; 0: from Since on
	Project string    // only of this project
	Service string    // only of this service
	Limit   int       // at most this many; 0: the server's default
}

func (f EventFilter) query(c *Client) url.Values {
	q := c.feed(f.Project, f.Limit)
	if f.Service != "" {
		q.Set("service", f.Service)
	}
	return q
}

// Events returns a part of the feed, oldest first. Its Revision is where to continue, or its
// Before if the filter has one.
func (c *Client) Events(ctx context.Context, f EventFilter) (*Events, error) {
	q := f.query(c)
	if f.Since > 0 || f.Before == 0 {
		q.Set("since", strconv.FormatInt(f.Since, 10))
	}
	if !f.From.IsZero() {
		q.Set("since", f.From.Format(time.RFC3339Nano))
	}
	if f.Before > 0 {
		q.Set("before", strconv.FormatInt(f.Before, 10))
	}
	return send[Events](ctx, c, get("/v1/events", q))
}

// LatestEvents returns the newest events, oldest first.
func (c *Client) LatestEvents(ctx context.Context, project string, limit int) (*Events, error) {
	return c.NewestEvents(ctx, EventFilter{Project: project, Limit: limit})
}

// NewestEvents returns the newest events that match a filter, oldest first. It ignores
// Since and From.
func (c *Client) NewestEvents(ctx context.Context, f EventFilter) (*Events, error) {
	return send[Events](ctx, c, get("/v1/events", f.query(c)))
}

func (c *Client) feed(project string, limit int) url.Values {
	q := c.projectQuery(project)
	if limit > 0 {
		q.Set("limit", strconv.Itoa(limit))
	}
	return q
}

// Revision returns the current revision of the feed: a stream since then includes the
// effects of all later requests.
func (c *Client) Revision(ctx context.Context) (int64, error) {
	latest, err := c.LatestEvents(ctx, "", 1)
	if err != nil {
		return 0, err
	}
	return latest.Revision, nil
}
