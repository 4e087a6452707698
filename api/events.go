package api

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"mariposa"
	"mariposa/auth"
	"mariposa/contract"
	"mariposa/queue"
	"mariposa/store"
)

const (
	feedBatch = 256  // changes read at a time for a stream
	wideBatch = 1024 // the same for a stream of few kinds
	// maxScanned limits how many changes a list reads to find those that the caller can see.
	// Otherwise a caller who sees few projects would make the server read the whole feed.
	maxScanned = 10_000
	maxOfKinds = 1000             // the same for a list of some kinds, which may be rare
	scanBatch  = 1000             // changes read at a time
	scanTime   = 10 * time.Second // time limit of a list that finds nothing
	// maxHistories is the number of projects whose history a list then reads separately.
	maxHistories = 100
)

type eventsInput struct {
	InProject
	Service     string `query:"service" doc:"only events of this service, by name or id"`
	Since       string `query:"since" doc:"a revision: only events after it. For a list also an RFC 3339 time: only events since then, as far back as the feed goes"`
	Before      int64  `query:"before" minimum:"0" doc:"for a list, a revision: only events before it, the newest ones. With since, none that are older"`
	Limit       int    `query:"limit" minimum:"0" maximum:"1000" doc:"maximum number of events; default: 100 for a list, unlimited for a stream"`
	Kinds       string `query:"kinds" maxLength:"500" doc:"only events of these kinds, separated by commas: a whole kind such as instance.failed, or its first part such as task"`
	Detail      string `query:"detail" maxLength:"255" doc:"with kinds: the id of a project of which all events are sent"`
	States      bool   `query:"states" doc:"for a stream: also send the state of each project soon after it has changed, as event state. Events may come a tenth of a second later then, a fifth if the server is busy, without those that later ones of the same task or instance supersede, and only the newest of many events of instances"`
	Instances   string `query:"instances" maxLength:"255" doc:"with states: the id of a project whose instances are sent soon after they have changed, as event instances"`
	Access      string `query:"access" maxLength:"255" doc:"with states: the field access of GET /v1/user. As soon as the caller's rights are others, they are sent, as event access"`
	LastEventID string `header:"Last-Event-ID" doc:"for a stream: the last revision received; takes precedence over since"`
	Accept      string `header:"Accept" hidden:"true"`
}

// check checks which parameters belong to a list and which to a stream.
func (in *eventsInput) check(live bool) error {
	switch {
	case in.Instances != "" && !(live && in.States):
		return mariposa.Errorf(mariposa.InvalidArgument, "instances: only a stream with states=true has them: use Accept: text/event-stream and states=true, or GET /v1/instances")
	case in.Before > 0 && live:
		return mariposa.Errorf(mariposa.InvalidArgument, "before: a stream has no end: omit it, or request a list")
	}
	return nil
}

func (s *server) events(ctx context.Context, in *eventsInput) (*huma.StreamResponse, error) {
	project, err := s.projectID(ctx, in.InProject)
	if err != nil {
		return nil, err
	}
	live := accepts([]string{in.Accept}, "text/event-stream")
	f := feed{s: s, caller: caller(ctx), project: store.HistoryQuery{Project: project}, limit: in.Limit}
	if project == "" && in.Organization != "" {
		if f.organization, err = s.organizationID(ctx, in.Organization); err != nil {
			return nil, err
		}
	}
	f.resetVisibility(ctx)
	if f.services, err = s.serviceNames(s.viewer(ctx), f.visible, project, in.Service); err != nil {
		return nil, err
	}
	if f.kinds, err = parseKinds(in.Kinds); err != nil {
		return nil, err
	}
	if err := in.check(live); err != nil {
		return nil, err
	}
	f.detail, f.states, f.instances, f.before, f.access = in.Detail, in.States, in.Instances, in.Before, in.Access
	since, field := in.Since, "since"
	if live && in.LastEventID != "" {
		since, field = in.LastEventID, "Last-Event-ID"
	}
	if since == "" {
		switch {
		case f.before > 0:
			return f.sendList(ctx, f.older)
		case !live:
			return f.sendList(ctx, f.newest)
		}
		f.after = s.Picture.Revision()
	} else if at, bad := time.Parse(time.RFC3339, since); bad == nil && !live {
		if f.after, err = s.revisionAt(ctx, at); err != nil {
			return nil, err
		}
	} else if f.after, err = parseRevision(field, since); err != nil {
		return nil, err
	}
	if err := f.checkStart(ctx); err != nil {
		return nil, err
	}
	switch {
	case f.before > 0:
		return f.sendList(ctx, f.older)
	case !live:
		return f.sendList(ctx, f.list)
	}
	release, err := s.acquireStream(ctx)
	if err != nil {
		return nil, err
	}
	return &huma.StreamResponse{Body: func(hc huma.Context) {
		defer release()
		r, w := humago.Unwrap(hc)
		if f.states {
			f.streamWithStates(r.Context(), w)
			return
		}
		f.stream(r.Context(), w)
	}}, nil
}

// feed reads the log of changes for one request.
type feed struct {
	s       *server
	caller  *auth.Caller
	visible *visibility
	project store.HistoryQuery
	// organization restricts the feed to an organization and its projects; empty: any.
	organization string
	services     []string // only events of these services, by name; nil: any
	kinds        []string // only events of these kinds, or whose kind begins with them; nil: any
	detail       string   // the project of which events of all kinds are sent
	states       bool     // states of projects are sent, too
	instances    string   // the project whose instances are sent, with states
	access       string   // the rights of the caller that the client knows, with states; empty: it does not care
	after        int64    // the newest revision sent or skipped
	before       int64    // a list ends before this revision; 0: at the newest
	limit        int

	pieces   [][]byte        // what a stream sends next
	size     int             // its bytes
	included []*store.Change // of the last changes; reused
}

// parseKinds reads a list of kinds of events.
func parseKinds(text string) (kinds []string, err error) {
	if text == "" {
		return nil, nil
	}
	for kind := range strings.SplitSeq(text, ",") {
		if !kindPattern.MatchString(kind) {
			return nil, mariposa.Errorf(mariposa.InvalidArgument, "kinds: %q is not a kind of event: use kinds such as task,instance.failed", kind)
		}
		kinds = append(kinds, kind)
	}
	return kinds, nil
}

var kindPattern = regexp.MustCompile(`^[a-z]+(\.[a-z-]+)?$`)

// isWanted reports whether a change is of a requested kind.
func (f *feed) isWanted(c *store.Change) bool {
	if f.kinds == nil || (f.detail != "" && f.detail == c.Event.Project) {
		return true
	}
	for _, kind := range f.kinds {
		if rest, ok := strings.CutPrefix(c.Event.Kind, kind); ok && (rest == "" || rest[0] == '.') {
			return true
		}
	}
	return false
}

// checkStart checks that the feed contains the revision to continue from. A future revision
// belongs to another store, or to the time before a backup was restored: waiting for it
// would never end.
func (f *feed) checkStart(ctx context.Context) error {
	f.s.await(ctx, f.after)
	if now := f.s.Picture.Revision(); f.after > now {
		if newest, err := f.s.Store.Revision(ctx); err != nil {
			return err
		} else if f.after <= newest {
			return mariposa.Errorf(mariposa.Unavailable, "this replica lags behind: it shows revision %d, and the request asks for events after %d; try again shortly or use another replica", now, f.after)
		}
		return mariposa.Errorf(mariposa.TooOld, "the feed is at revision %d, but the request asks for events after %d: read the state again and continue from its revision", now, f.after)
	}
	_, err := f.s.Store.Changes(ctx, f.after, 1)
	return err
}

// resetVisibility discards what the caller could see earlier: a stream may outlive a
// role.
func (f *feed) resetVisibility(ctx context.Context) { f.visible = f.s.newVisibility(ctx, f.caller) }

// isIncluded reports whether a change is requested and visible to the caller.
func (f *feed) isIncluded(c *store.Change) bool { return f.isRequested(c) && f.sees(c) }

// isRequested reports whether a change is public, and one of those that the request is about.
func (f *feed) isRequested(c *store.Change) bool {
	return c.Event.Kind != "" && c.Record.Kind != mariposa.KindKey && f.isWanted(c) && f.project.Matches(c) && f.concerns(c)
}

// concerns reports whether a change is about the requested services.
func (f *feed) concerns(c *store.Change) bool {
	if f.services == nil || slices.Contains(f.services, c.Event.Service) {
		return true
	}
	task, ok := c.Record.Spec.(*mariposa.TaskSpec)
	return ok && queue.Overlap(task.Services, f.services)
}

// revisionAt returns the newest revision stored before a time, or the oldest revision
// that the feed can continue from.
func (s *server) revisionAt(ctx context.Context, at time.Time) (int64, error) {
	low, high := int64(0), s.Picture.Revision() // the result is in this range
	for low < high {
		middle := low + (high-low)/2
		next, err := s.Store.Changes(ctx, middle, 1)
		switch {
		case errors.Is(err, store.ErrTooOld), err == nil && len(next) > 0 && next[0].Time.Before(at):
			low = middle + 1
		case err != nil:
			return 0, err
		default:
			high = middle
		}
	}
	return low, nil
}

// sees reports whether the caller can see a change, by their current rights. Changes of a
// project are visible to its users, changes of an organization to its members, and all
// others to installation admins.
func (f *feed) sees(c *store.Change) bool {
	project := c.Event.Project
	switch spec := c.Record.Spec.(type) {
	case *mariposa.ProjectSpec:
		project = c.Record.ID
	case *mariposa.InstanceSpec:
		project = spec.Project
	case *mariposa.VolumeSpec:
		if project = spec.Project; project == "" { // the volume belongs to the organization
			return (f.organization == "" || f.organization == spec.Organization) && f.s.seesVolume(f.visible, spec)
		}
	case *mariposa.NetworkSpec:
		if project = spec.Project; project == "" { // a shared network
			return (f.organization == "" || f.organization == spec.Organization) && f.s.seesNetwork(f.visible, spec.Project, spec.Organization)
		}
	case *mariposa.AttachmentSpec:
		if project = spec.Project; project == "" {
			return (f.organization == "" || f.organization == spec.Organization) && f.s.seesNetwork(f.visible, spec.Project, spec.Organization)
		}
	case *mariposa.OrganizationSpec:
		return (f.organization == "" || f.organization == c.Record.ID) && (f.visible.all || f.s.hasRoleIn(f.caller, (*store.Organization)(&c.Record)))
	case *mariposa.UserSpec, *mariposa.TokenSpec, *mariposa.NodeSpec, *mariposa.PackageSpec, *mariposa.KeySpec, *mariposa.SettingsSpec:
		return f.visible.all && f.organization == ""
	}
	if f.organization == "" && f.visible.all {
		return true
	}
	r := f.visible.record(project)
	return r != nil && (f.organization == "" || f.organization == r.Spec().Organization)
}

// hasRoleIn reports whether a caller has a role in an organization, or had one before it
// was deleted.
func (s *server) hasRoleIn(c *auth.Caller, org *store.Organization) bool {
	if now := s.Picture.Orgs.Get(org.ID); now != nil {
		org = now
	}
	return s.directory.RoleOf(c, org) != ""
}

// stream sends the feed as it grows, until the client disconnects or the server stops. For
// a slow client it keeps only the position in the log. A client that reads nothing for a
// while is disconnected and can reconnect.
func (f *feed) stream(ctx context.Context, w http.ResponseWriter) {
	out := f.openStream(w)
	for sent := 0; out.err == nil; {
		changes, err := f.next(ctx)
		if err != nil {
			if ctx.Err() == nil {
				out.send(f.sendEnd(ctx, err))
			}
			return
		}
		if !f.renew(ctx, changes) {
			out.send(f.sendEnd(ctx, mariposa.Errorf(mariposa.Unauthorized, "the token is no longer valid")))
			return
		}
		n := f.encode(ctx, changes, f.limit-sent)
		out.send(f.take()...)
		if sent += n; f.limit > 0 && sent >= f.limit {
			return
		}
		if time.Since(out.last) > f.s.Heartbeat {
			out.send([]byte(": heartbeat\n\n"))
		}
		if len(changes) == 0 && !f.awaitGrowth(ctx, out) {
			return
		}
	}
}

// next reads the next changes for a stream: those that the picture still has, or else those of
// the store. That counts as a heavy request, so that one user with many streams does not slow
// down the server for others.
func (f *feed) next(ctx context.Context) ([]store.Change, error) {
	batch := feedBatch
	if f.kinds != nil {
		batch = wideBatch
	}
	if changes, ok := f.s.Picture.Changes(f.after, batch); ok {
		return changes, nil
	}
	done, err := f.s.usage.beginHeavy(ctx, f.caller)
	if err != nil {
		return nil, err
	}
	defer done()
	return f.s.Store.Changes(ctx, f.after, batch)
}

// awaitGrowth waits until the feed grows or a heartbeat is due; it returns false when
// the stream is over.
func (f *feed) awaitGrowth(ctx context.Context, out *sender) bool {
	until, cancel := context.WithTimeout(ctx, max(time.Millisecond, f.s.Heartbeat-time.Since(out.last)+time.Millisecond))
	defer cancel()
	err := f.s.Store.Wait(until, f.after)
	if err == nil { // the picture follows the store
		select {
		case <-f.s.Picture.Moved(f.after):
		case <-until.Done():
		}
	}
	switch {
	case ctx.Err() != nil:
		return false
	case err == nil, errors.Is(err, context.DeadlineExceeded):
		return true
	}
	out.send(f.sendEnd(ctx, err))
	return false
}

// sendEnd returns the event with the reason why the server ends a stream.
func (f *feed) sendEnd(ctx context.Context, err error) []byte {
	data, _ := json.Marshal(f.s.explain(ctx, err)) // strings always marshal
	return fmt.Appendf(nil, "event: error\ndata: %s\n\n", data)
}

// renew updates the rights of the caller after these changes; it returns false if the token
// is no longer valid. It first waits until the picture includes the changes, because names
// are looked up there.
func (f *feed) renew(ctx context.Context, changes []store.Change) bool {
	if len(changes) > 0 {
		f.s.await(ctx, changes[len(changes)-1].Revision)
	}
	now := f.s.renew(f.caller)
	if now != nil {
		f.caller = now
		f.resetVisibility(ctx)
	}
	return now != nil
}

// encode adds the included changes to what is sent next, at most limit if that is above zero, and
// returns their number.
func (f *feed) encode(ctx context.Context, changes []store.Change, limit int) (n int) {
	f.included = f.included[:0]
	for i := range changes {
		if f.isIncluded(&changes[i]) {
			f.included = append(f.included, &changes[i])
		}
	}
	if len(changes) > 0 {
		f.after = changes[len(changes)-1].Revision
	}
	return f.encodeEvents(ctx, f.included, limit)
}

// encodeEvents adds events to what is sent next, at most limit if that is above zero, and returns
// their number.
func (f *feed) encodeEvents(ctx context.Context, events []*store.Change, limit int) (n int) {
	if len(events) == 0 {
		return 0
	}
	v := f.s.viewer(ctx)
	v.live = true
	for _, c := range events {
		text, err := f.s.encodings.event(v, c)
		if err != nil {
			_ = f.s.unexpectedError(ctx, err) // logged; the others are still sent
			continue
		}
		f.add(text)
		if n++; limit > 0 && n == limit {
			f.after = c.Revision
			break
		}
	}
	return n
}

// add adds a text to what is sent next. Texts may be shared, and are not copied.
func (f *feed) add(text []byte) { f.pieces, f.size = append(f.pieces, text), f.size+len(text) }

// take returns what is sent next. It is valid until the next call of add.
func (f *feed) take() [][]byte {
	all := f.pieces
	f.pieces, f.size = f.pieces[:0], 0
	return all
}

// openStream begins a stream.
func (f *feed) openStream(w http.ResponseWriter) *sender {
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("X-Accel-Buffering", "no")
	w.WriteHeader(http.StatusOK)
	out := &sender{w: w, control: http.NewResponseController(w)}
	out.send(fmt.Appendf(nil, "retry: 1000\n: events after revision %d\n\n", f.after))
	_ = out.control.SetReadDeadline(time.Time{}) // the request was received completely; a silent client is still there
	return out
}

// maxEventAddresses is how many addresses of an instance an event has.
const maxEventAddresses = 4

// briefly leaves out most of many addresses of an instance: it may have many events.
func briefly(doc contract.Instance) contract.Instance {
	if n := len(doc.Addresses); n > maxEventAddresses {
		doc.Addresses, doc.AddressesCount = doc.Addresses[:maxEventAddresses], n
	}
	return doc
}

// event shows a change, with its object as it was right after.
func (v *viewer) event(c *store.Change) contract.Event {
	v.at = c.Time
	defer func() { v.at = time.Time{} }()
	e := contract.Event{
		Revision: c.Revision, Time: c.Time, Kind: c.Event.Kind, Project: c.Event.Project, ProjectName: v.projectName(c.Event.Project),
		ServiceName: c.Event.Service, Instance: c.Event.Instance, Node: c.Event.Node, NodeName: v.nodeName(c.Event.Node),
		Task: c.Event.Task, Actor: c.Event.Actor,
	}
	why := c.Event.Reason
	r := &c.Record
	switch spec := r.Spec.(type) {
	case *mariposa.ProjectSpec:
		e.Object, e.ProjectName = v.project((*store.Project)(r)), spec.Name
	case *mariposa.VersionSpec:
		e.Object = v.versionDoc((*store.Version)(r))
	case *mariposa.InstanceSpec:
		e.Object, e.InstanceName = briefly(v.instance((*store.Instance)(r))), spec.Name
		if st := (*store.Instance)(r).Status(); st != nil && why == nil {
			why = mariposa.Reported(st.Reason)
		}
		why = cmp.Or(why, spec.Reason)
	case *mariposa.TaskSpec:
		e.Object = v.task((*store.Task)(r))
	case *mariposa.VolumeSpec:
		e.Object, e.ProjectName = v.volume((*store.Volume)(r)), cmp.Or(e.ProjectName, spec.ProjectName)
	case *mariposa.NetworkSpec:
		e.Object = contract.PastNetwork{Network: v.network((*store.Network)(r))}
	case *mariposa.AttachmentSpec:
		e.Object = contract.PastNetwork{Network: v.attachedNetwork((*store.Attachment)(r))}
	case *mariposa.OrganizationSpec:
		e.Object = contract.Named{ID: r.ID, Name: spec.Name}
	case *mariposa.UserSpec:
		e.Object = contract.Named{ID: r.ID, Name: spec.Name}
	case *mariposa.TokenSpec:
		e.Object = contract.Named{ID: r.ID, Name: spec.Name}
	case *mariposa.PackageSpec:
		e.Object = contract.Named{ID: r.ID, Name: r.ID}
	case *mariposa.NodeSpec:
		e.Object, e.NodeName = contract.PastNode{Node: sampleQuarantine(v.node((*store.Node)(r)), maxListedQuarantined)}, spec.Name
	}
	e.Reason, e.ReasonCode = v.wording(c.Event.Project)(why, c.Time), codeOf(why) // as it was then
	return e
}
