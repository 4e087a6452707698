package client

import (
	"context"
	"encoding/json"
	"net/url"
	"strconv"
	"strings"

	"mariposa/contract"
)

// Event is one change. Its object is kept as it came; the methods read it.
type Event struct {
	contract.Event
	Object json.RawMessage `json:"object"`
}

// Events is a stretch of the feed.
type Events struct {
	Events   []Event `json:"events"`
	Revision int64   `json:"revision"`
}

// Subject is the first half of the kind: instance, task, project, version or node.
func (e Event) Subject() string {
	subject, _, _ := strings.Cut(e.Kind, ".")
	return subject
}

// Verb is the second half of the kind: what became of it.
func (e Event) Verb() string {
	_, verb, _ := strings.Cut(e.Kind, ".")
	return verb
}

// AsTask returns the task that an event tells of; nil for other events, and when
// the event does not carry it.
func (e Event) AsTask() *contract.Task { return object[contract.Task](e, "task") }

// AsInstance returns the instance that an event tells of, or nil.
func (e Event) AsInstance() *contract.Instance { return object[contract.Instance](e, "instance") }

// AsNode returns the node that an event tells of, or nil.
func (e Event) AsNode() *contract.Node { return object[contract.Node](e, "node") }

// AsVolume returns the volume that an event tells of, or nil.
func (e Event) AsVolume() *contract.Volume { return object[contract.Volume](e, "volume") }

// AsNetwork returns the network that an event tells of, or nil.
func (e Event) AsNetwork() *contract.Network { return object[contract.Network](e, "network") }

// AsVersion returns the version that an event tells of, or nil.
func (e Event) AsVersion() *contract.Version { return object[contract.Version](e, "version") }

func object[T any](e Event, subject string) *T {
	if e.Subject() != subject || len(e.Object) == 0 || string(e.Object) == "null" {
		return nil
	}
	o := new(T)
	if json.Unmarshal(e.Object, o) != nil {
		return nil // of a newer server, perhaps: the event itself still tells what happened
	}
	return o
}

// EventFilter says which part of the feed is wanted.
type EventFilter struct {
	Since   int64  // what came after this revision
	Project string // of this project alone
	Limit   int    // at most so many; 0: as the server likes
}

// Events returns a stretch of the feed, oldest first. Its Revision is where to
// go on.
func (c *Client) Events(ctx context.Context, f EventFilter) (*Events, error) {
	q := c.feed(f.Project, f.Limit)
	q.Set("since", strconv.FormatInt(f.Since, 10))
	return send[Events](ctx, c, get("/v1/events", q))
}

// LatestEvents returns the newest events, oldest first.
func (c *Client) LatestEvents(ctx context.Context, project string, limit int) (*Events, error) {
	return send[Events](ctx, c, get("/v1/events", c.feed(project, limit)))
}

func (c *Client) feed(project string, limit int) url.Values {
	q := c.about(project)
	if limit > 0 {
		q.Set("limit", strconv.Itoa(limit))
	}
	return q
}

// Revision is where the feed is now: a stream since then misses nothing that is
// asked for from now on.
func (c *Client) Revision(ctx context.Context) (int64, error) {
	latest, err := c.LatestEvents(ctx, "", 1)
	if err != nil {
		return 0, err
	}
	return latest.Revision, nil
}
