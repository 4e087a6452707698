package api_test

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"

	"mariposa"
	"mariposa/contract"
	"mariposa/store"
)

// overtaken is a store in which something else is committed just before a write that was
// built without knowing of it.
type overtaken struct {
	store.Store
	next atomic.Pointer[overtaking]
}

type overtaking struct {
	kind   mariposa.Kind // of the write
	before func()
}

func (s *overtaken) Commit(ctx context.Context, units ...store.Unit) []store.Result {
	next := s.next.Load()
	writes := func(u store.Unit) bool {
		return slices.ContainsFunc(u.Writes, func(w store.Write) bool { return w.Kind == next.kind })
	}
	if next != nil && slices.ContainsFunc(units, writes) && s.next.CompareAndSwap(next, nil) {
		next.before()
	}
	return s.Store.Commit(ctx, units...)
}

// overtake makes something happen just before the next write of a kind.
func (s *overtaken) overtake(kind mariposa.Kind, before func()) {
	s.next.Store(&overtaking{kind, before})
}

// An instance that is placed on a node while it is deleted does not stay on a node that does
// not exist.
func TestWhatIsPlacedOnANodeThatIsDeletedIsForgotten(t *testing.T) {
	t.Parallel()
	s := &overtaken{}
	h := newTestServer(t, withStore(func(inner store.Store) store.Store { s.Store = inner; return s }))
	shop := h.create("shop", hello)
	h.node("n1", mariposa.NodeSpec{Name: "n1"}, mariposa.NodeStatus{State: mariposa.NodeUnknown})
	id := newID()
	s.overtake(mariposa.KindNode, func() { h.instance(id, shop.ID, "web", "n1", mariposa.StateRunning, nil) })
	want[contract.Changed](h.call("DELETE", "/v1/nodes/n1", nil), 200)
	if s.next.Load() != nil {
		t.Fatal("nothing was placed")
	}
	if all := want[contract.Instances](h.call("GET", "/v1/instances?project=shop", nil), 200).Instances; len(all) != 0 {
		t.Errorf("there are %+v", all)
	}
	h.call("GET", "/v1/nodes/n1", nil).wantError(404, mariposa.ResourceNotFound)
}

// A session that begins while its user is changed does not outlive the change.
func TestASessionThatBeginsDuringAChangeOfItsUserEnds(t *testing.T) {
	t.Parallel()
	s := &overtaken{}
	h := newTestServer(t, withStore(func(inner store.Store) store.Store { s.Store = inner; return s }))
	h.newPerson("ann")
	const next = "staple battery horse"
	own := h.signIn(contract.SignIn{User: "ann", Password: horse})
	var late browser

	s.overtake(mariposa.KindUser, func() { late = h.signIn(contract.SignIn{User: "ann", Password: horse}) })
	want[contract.Changed](own.call("PUT", "/v1/password", contract.Password{Password: next, Current: horse}), 200)
	late.call("GET", "/v1/user", nil).wantError(401, mariposa.Unauthorized)
	want[contract.Whoami](own.call("GET", "/v1/user", nil), 200)

	s.overtake(mariposa.KindUser, func() { late = h.signIn(contract.SignIn{User: "ann", Password: next}) })
	yes, no := true, false
	want[contract.Changed](h.call("PUT", "/v1/users/ann", contract.UserChange{Disabled: &yes}), 200)
	want[contract.Changed](h.call("PUT", "/v1/users/ann", contract.UserChange{Disabled: &no}), 200)
	late.call("GET", "/v1/user", nil).wantError(401, mariposa.Unauthorized)
}
