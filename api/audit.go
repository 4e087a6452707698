package api

import (
	"context"
	"encoding/json"
	"strconv"
	"sync"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"mariposa"
	"mariposa/auth"
	"mariposa/contract"
	"mariposa/store"
)

type listAuditInput struct {
	InProject
	Actor   string    `query:"actor" doc:"id or name of the user who made the request, or for whom it was made" maxLength:"255"`
	Action  string    `query:"action" doc:"such as manifest.put; with a trailing dot, all actions with this prefix" maxLength:"100"`
	Outcome string    `query:"outcome" enum:"done,denied,failed"`
	Since   time.Time `query:"since"`
	Until   time.Time `query:"until"`
	Limit   int       `query:"limit" minimum:"1" maximum:"1000" default:"100"`
	Marker  string    `query:"marker" doc:"the marker of the previous page" maxLength:"20"`
	Accept  string    `header:"Accept" hidden:"true"`
}

func (s *server) listAudit(ctx context.Context, in *listAuditInput) (*huma.StreamResponse, error) {
	q := store.AuditQuery{Actor: in.Actor, Action: in.Action, Outcome: in.Outcome, Since: in.Since, Until: in.Until, Limit: in.Limit + 1}
	if err := s.auditScope(ctx, in.InProject, &q); err != nil {
		return nil, err
	}
	if in.Marker != "" {
		n, err := strconv.ParseInt(in.Marker, 10, 64)
		if err != nil || n <= 0 {
			return nil, invalid("invalid marker %q: use the marker of the previous page", shortenText(in.Marker))
		}
		q.Before = n
	}
	if accepts([]string{in.Accept}, "application/x-ndjson") {
		return &huma.StreamResponse{Body: func(hc huma.Context) { s.exportAudit(hc, q) }}, nil
	}
	found, err := s.Store.Audit(ctx, q)
	if err != nil {
		return nil, err
	}
	page := contract.Audit{Records: neverNil(found)}
	if len(found) > in.Limit {
		page.Records = found[:in.Limit]
		page.Marker = strconv.FormatInt(page.Records[in.Limit-1].ID, 10)
	}
	return &huma.StreamResponse{Body: func(hc huma.Context) {
		hc.SetHeader("Content-Type", "application/json")
		_ = huma.DefaultJSONFormat.Marshal(hc.BodyWriter(), page) // the client may be gone
	}}, nil
}

// auditScope restricts a query to records that the caller can read.
func (s *server) auditScope(ctx context.Context, in InProject, q *store.AuditQuery) error {
	c := caller(ctx)
	switch {
	case in.Project != "":
		r, err := s.findProject(ctx, in.Project, in.Organization)
		if err != nil {
			if idPattern.MatchString(in.Project) && s.seesAll(c) { // a deleted project
				q.Project = in.Project
				return nil
			}
			return err
		}
		q.Project = r.ID
		return s.require(ctx, auth.AuditProject, r.Record())
	case in.Organization != "":
		org, err := s.findOrganization(ctx, in.Organization)
		if err != nil {
			return err
		}
		q.Organizations = []string{org.ID}
		return s.require(ctx, auth.AuditOrganization, org.Record())
	case s.seesAll(c):
		return nil
	}
	for _, org := range s.Picture.OrganizationsOf(c.User) {
		if s.directory.May(c, auth.AuditOrganization, org.Record()) == auth.Allowed {
			q.Organizations = append(q.Organizations, org.ID)
		}
	}
	if len(q.Organizations) == 0 {
		return &mariposa.Error{Code: mariposa.Forbidden, Message: c.Name + " owns no organization: specify a project to read its audit log"}
	}
	return nil
}

// exportAudit writes all matching records, in batches.
func (s *server) exportAudit(hc huma.Context, q store.AuditQuery) {
	hc.SetHeader("Content-Type", "application/x-ndjson")
	out := json.NewEncoder(hc.BodyWriter())
	q.Limit = 500
	for {
		found, err := s.Store.Audit(hc.Context(), q)
		if err != nil {
			_ = out.Encode(s.explain(hc.Context(), err)) // the last line says that the export is incomplete
			return
		}
		for i := range found {
			if out.Encode(found[i]) != nil {
				return // the client is gone
			}
			q.Before = found[i].ID
		}
		if len(found) < q.Limit {
			return
		}
	}
}

// useTimes records when tokens were last used, so that the store is updated once per
// interval and not with every request.
type useTimes struct {
	mu   sync.Mutex
	last map[string]time.Time
}

// useInterval is the precision of a token's last use.
const useInterval = time.Minute

// recordTokenUse records the use of a token. It never delays a request.
func (s *server) recordTokenUse(c *auth.Caller, from string, now time.Time) {
	if c.Token == "" {
		return
	}
	s.tokenUses.mu.Lock()
	last, known := s.tokenUses.last[c.Token]
	due := !known || now.Sub(last).Abs() >= useInterval // the clock may be set back
	if due {
		if s.tokenUses.last == nil || len(s.tokenUses.last) > 100_000 {
			s.tokenUses.last = map[string]time.Time{}
		}
		s.tokenUses.last[c.Token] = now
	}
	s.tokenUses.mu.Unlock()
	if !due {
		return
	}
	go func() { // ends with its timeout at the latest
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if err := s.change.RecordTokenUse(ctx, c.Token, from, now); err != nil {
			s.Logger.Debug("cannot record the use of a token", "err", err)
		}
	}()
}

// renew returns a caller with their current rights: streams outlive tokens and roles.
// It returns nil if they would no longer be admitted.
func (s *server) renew(c *auth.Caller) *auth.Caller { return s.directory.Renew(c, s.Clock.Now()) }

// mayStillRead reports whether a caller may still read the log of an instance.
func (s *server) mayStillRead(c *auth.Caller, r *store.Instance, reveal bool) bool {
	need := auth.ReadProject
	if reveal {
		need = auth.ReadSecrets
	}
	now := s.renew(c)
	project := s.Picture.Projects.Get(r.Spec().Project)
	switch {
	case now == nil:
		return false
	case project == nil: // the end of a deleted project's log is shown to those who could read it before
		return true
	}
	return s.directory.Require(now, need, project.Record()) == nil
}
