package api

import (
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/coder/websocket"

	"mariposa"
	"mariposa/auth"
	"mariposa/fleet"
	"mariposa/listener"
	"mariposa/wire"
)

type admissionKey struct{}

// admissionOf returns how an agent was authenticated; an empty one for other callers.
func admissionOf(ctx context.Context) fleet.Admission {
	by, _ := ctx.Value(admissionKey{}).(fleet.Admission)
	return by
}

// admitAgent authenticates an agent by a join token, or by the key of a node that has
// joined before. An agent with neither may announce its node.
func (s *server) admitAgent(r *http.Request, token, from string, now time.Time) (*http.Request, *Error) {
	by, standing := s.identifyAgent(r, token, from, now)
	if isStranger(by) { // another replica may have created the token, or accepted the node
		moved, err := s.catchUpForAgent(r.Context(), now)
		if err != nil {
			return r, newError(mariposa.Unavailable, tryAnotherServer, nil)
		}
		if moved {
			by, standing = s.identifyAgent(r, token, from, now)
		}
	}
	if isStranger(by) {
		if !s.mayAnnounce(r, standing) {
			return r, s.rejectToken(r, from, func() string { return s.whyNotJoined(r.Context(), token, standing, now) })
		}
		if ok, _, retry := s.announcements.Fail(listener.Group(from), now); !ok {
			e := newError(mariposa.Throttled, "too many connections of nodes without a join token from "+from+": wait, or use join tokens (mariposa node join-token)", nil)
			e.retry = retry
			return r, e
		}
		by.Tokenless = true
	}
	return r.WithContext(context.WithValue(r.Context(), admissionKey{}, by)), nil
}

// identifyAgent finds out what admits an agent, and what is known of its keys.
func (s *server) identifyAgent(r *http.Request, token, from string, now time.Time) (by fleet.Admission, standing auth.NodeStanding) {
	by.From = from
	by.Token, by.Own = s.directory.JoinToken(token, now)
	by.Node, standing = s.identifyNode(r)
	return by, standing
}

// isStranger reports whether nothing admits an agent.
func isStranger(by fleet.Admission) bool { return by.Token == nil && !by.Own && by.Node == "" }

// catchUpForAgent waits until the picture shows what other replicas have committed, and
// reports whether there was something new. It does so only a few times a second: anybody
// can cause it.
func (s *server) catchUpForAgent(ctx context.Context, now time.Time) (moved bool, err error) {
	if ok, _, _ := s.catchUps.Fail("", now); !ok {
		return false, nil
	}
	return s.change.CatchUp(ctx, s.Picture.Revision())
}

const tryAnotherServer = "the server cannot reach its database now; try another server"

// mayAnnounce reports whether a request is that of a new node without a join token. One
// with a wrong token, or with a key that its node does not have, is not.
func (s *server) mayAnnounce(r *http.Request, standing auth.NodeStanding) bool {
	return s.Fleet.TakesTokenless() && r.Header.Get("Authorization") == "" && r.Header.Get(wire.NodeHeader) != "" && standing == auth.NodeUnknown
}

// maxNodeKeys is how many keys an agent can present: its key, and the one before.
const maxNodeKeys = 2

// identifyNode finds the node whose key an agent presents, and says what is known of the
// keys if there is none.
func (s *server) identifyNode(r *http.Request) (found string, standing auth.NodeStanding) {
	proofs := strings.Split(strings.Join(r.Header.Values(wire.NodeHeader), ","), ",") // proxies may join them
	for i, proof := range proofs[:min(len(proofs), maxNodeKeys)] {
		node, key, _ := strings.Cut(strings.TrimSpace(proof), ":")
		is := s.directory.StandingOf(node, key)
		if is == auth.NodeKnown {
			return node, is
		}
		if i == 0 || is == auth.NodeOldKey {
			standing = is
		}
	}
	return "", standing
}

// whyNotJoined explains why an agent was rejected. It says more about a node only to an
// agent that had its key.
func (s *server) whyNotJoined(ctx context.Context, token string, standing auth.NodeStanding, now time.Time) string {
	const remedy = " (mariposa node join-token)"
	switch {
	case standing == auth.NodeOldKey:
		return mariposa.RetiredKeyMessage
	case token == "":
		return "unknown node: start the agent with a join token; it keeps its id, its key and its instances" + remedy
	case s.directory.Identify(token, now) != nil:
		return "invalid join token: this is the token of a user; create a join token" + remedy
	}
	return "invalid join token: " + s.whyRejected(ctx, token, now) + remedy
}

// agentHandler passes the connection of an agent to the fleet.
func (s *server) agentHandler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		by := admissionOf(r.Context())
		if s.Fleet.Stalled() {
			s.Fleet.NoteAttempt(by)
			newError(mariposa.Unavailable, tryAnotherServer, nil).write(w)
			return
		}
		var leave func()
		var ok bool
		if by.Tokenless {
			if leave, ok = s.Fleet.EnterTokenless(by.From); !ok {
				newError(mariposa.Throttled, "too many nodes without a join token connect at the same time: wait, or use join tokens (mariposa node join-token)", nil).write(w)
				return
			}
		} else if by, leave, ok = s.Fleet.EnterWaiting(by); !ok {
			newError(mariposa.Throttled, "too many connections with the same key or join token have not sent a hello, or wait for their session: close them, or try again in a few seconds", nil).write(w)
			return
		}
		defer leave()
		_ = http.NewResponseController(w).SetWriteDeadline(time.Time{}) // the connection has its own timeouts
		conn, err := websocket.Accept(w, r, nil)
		switch {
		case err != nil:
			s.Logger.InfoContext(r.Context(), "cannot open connection of an agent", "err", err) // Accept has sent a response
		case by.Tokenless:
			s.Fleet.ServeTokenless(r.Context(), conn, by)
		default:
			s.Fleet.Serve(r.Context(), conn, by)
		}
	})
}
