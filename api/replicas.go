package api

import (
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/coder/websocket"

	"mariposa"
	"mariposa/contract"
	"mariposa/relay"
	"mariposa/store"
)

func (s *server) listReplicas(ctx context.Context, _ *struct{}) (*document[contract.Replicas], error) {
	living, err := relay.List(ctx, s.Store)
	if err != nil {
		return nil, err
	}
	shards, err := s.Store.Leases(ctx, store.ShardPrefix)
	if err != nil {
		return nil, err
	}
	planned, connected := map[string]int{}, map[string]int{}
	for _, l := range shards {
		planned[l.Holder]++
	}
	for _, r := range s.Picture.Nodes.All() {
		if st := r.Status(); st != nil && st.State == mariposa.NodeRunning {
			connected[st.Replica]++
		}
	}
	all := contract.Replicas{Replicas: []contract.Replica{}}
	for _, r := range living {
		all.Replicas = append(all.Replicas, contract.Replica{
			Name: r.Name, URL: r.URL, Version: r.Version, Since: optionalTime(r.Since), Sessions: connected[r.Name], Shards: planned[r.Name], Self: r.Name == s.Fleet.Replica,
		})
	}
	return answer(all)
}

type peerKey struct{}

// admitReplica authenticates another replica.
func (s *server) admitReplica(r *http.Request, from string) (*http.Request, *Error) {
	const refusal = "only other replicas of this installation may connect here"
	scheme, credentials, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if s.Links == nil || !strings.EqualFold(scheme, relay.Scheme) {
		return r, s.rejectToken(r, from, func() string { return refusal })
	}
	peer, err := s.Links.Admit(credentials)
	if err != nil {
		return r, s.rejectToken(r, from, func() string { return refusal + ": " + err.Error() })
	}
	return r.WithContext(context.WithValue(r.Context(), peerKey{}, peer)), nil
}

// replicaHandler passes the connection of another replica to the fleet.
func (s *server) replicaHandler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).SetWriteDeadline(time.Time{}) // the connection has its own timeouts
		peer := r.Context().Value(peerKey{}).(relay.Peer)
		w.Header().Set(relay.AnswerHeader, s.Links.Answer(peer))
		conn, err := websocket.Accept(w, r, nil)
		if err != nil {
			s.Logger.InfoContext(r.Context(), "cannot open connection of another replica", "replica", peer.Name, "err", err)
			return // Accept has sent a response
		}
		s.Fleet.ServeReplica(r.Context(), conn)
	})
}
