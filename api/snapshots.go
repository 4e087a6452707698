package api

import (
	"cmp"
	"context"
	"errors"
	"time"

	"mariposa"
	"mariposa/contract"
	"mariposa/store"
	"mariposa/wire"
)

// snapshotWait is how long a request waits for a change of a snapshot, which continues after that.
const snapshotWait = 20 * time.Second

func (s *server) listSnapshots(ctx context.Context, in *ofInstance) (*document[contract.Snapshots], error) {
	r, err := s.instanceWithSnapshots(ctx, in.Instance)
	if err != nil {
		return nil, err
	}
	spec := r.Spec()
	all, err := s.Fleet.Snapshots(ctx, spec.Node, r.ID)
	if err != nil {
		return nil, snapshotFailure(spec, "list the snapshots", err)
	}
	if all == nil {
		all = []mariposa.Snapshot{}
	}
	return answer(contract.Snapshots{Snapshots: all})
}

type createSnapshotInput struct {
	Instance string `path:"instance" doc:"id of the instance, a prefix of the id, or its name" maxLength:"255"`
	Body     contract.NewSnapshot
}

func (s *server) createSnapshot(ctx context.Context, in *createSnapshotInput) (*document[contract.SnapshotChanged], error) {
	name := cmp.Or(in.Body.Name, time.Now().UTC().Format("20060102-150405"))
	if err := mariposa.CheckName("snapshot", name); err != nil {
		return nil, err
	}
	return s.changeSnapshot(ctx, in.Instance, wire.Saving{To: mariposa.SnapshotCreating, Name: name})
}

type ofSnapshot struct {
	Instance string `path:"instance" doc:"id of the instance, a prefix of the id, or its name" maxLength:"255"`
	Snapshot string `path:"snapshot" doc:"name of the snapshot" maxLength:"63"`
}

func (s *server) restoreSnapshot(ctx context.Context, in *ofSnapshot) (*document[contract.SnapshotChanged], error) {
	return s.changeSnapshot(ctx, in.Instance, wire.Saving{To: mariposa.SnapshotRestoring, Name: in.Snapshot})
}

func (s *server) deleteSnapshot(ctx context.Context, in *ofSnapshot) (*document[contract.SnapshotChanged], error) {
	return s.changeSnapshot(ctx, in.Instance, wire.Saving{To: mariposa.SnapshotDeleting, Name: in.Snapshot})
}

// snapshotVerbs say what a change does, and its state once that is done.
var snapshotVerbs = map[mariposa.SnapshotState]struct {
	verb string
	done mariposa.SnapshotState
}{
	mariposa.SnapshotCreating:  {"save a snapshot", mariposa.SnapshotReady},
	mariposa.SnapshotRestoring: {"restore a snapshot", mariposa.SnapshotReady},
	mariposa.SnapshotDeleting:  {"delete a snapshot", "deleted"},
}

// changeSnapshot creates, restores or deletes a snapshot, and waits for the result for a while.
func (s *server) changeSnapshot(ctx context.Context, ref string, o wire.Saving) (*document[contract.SnapshotChanged], error) {
	r, err := s.instanceWithSnapshots(ctx, ref)
	if err != nil {
		return nil, err
	}
	spec := r.Spec()
	if o.To == mariposa.SnapshotRestoring {
		if err := s.change.RefuseFrozen(spec, "restored"); err != nil {
			return nil, err
		}
	}
	waits, cancel := context.WithTimeout(ctx, min(snapshotWait, s.RequestTimeout*2/3))
	defer cancel()
	done, err := s.Fleet.ChangeSnapshot(waits, spec.Node, r.ID, o)
	if err != nil {
		return nil, snapshotFailure(spec, snapshotVerbs[o.To].verb, err)
	}
	doc := contract.SnapshotChanged{Instance: r.ID, InstanceName: spec.Name, Name: o.Name, State: o.To}
	if done {
		doc.State = snapshotVerbs[o.To].done
	}
	a := s.auditOf(ctx, r)
	a.Reason = "snapshot " + o.Name
	s.recordAnswer(ctx, a, doc)
	return answer(doc)
}

// instanceWithSnapshots returns an instance whose compute type has snapshots.
func (s *server) instanceWithSnapshots(ctx context.Context, ref string) (*store.Instance, error) {
	r, err := s.findInstance(ctx, ref)
	if err != nil {
		return nil, err
	}
	return r, s.requireCapability(r.Spec(), func(c mariposa.Capabilities) bool { return c.Snapshots }, "snapshots")
}

// auditOf returns an audit record about an instance.
func (s *server) auditOf(ctx context.Context, r *store.Instance) mariposa.Audit {
	spec := r.Spec()
	a := sessionOf(ctx).Audit()
	a.Kind, a.Object, a.ObjectName, a.Project = string(mariposa.KindInstance), r.ID, spec.Name, spec.Project
	if p := s.Picture.Projects.Get(spec.Project); p != nil {
		a.ProjectName, a.Organization = p.Spec().Name, p.Spec().Organization
	}
	return a
}

// snapshotFailure adds the name of the instance to an error of its node.
func snapshotFailure(spec *mariposa.InstanceSpec, action string, err error) error {
	return nodeFailure(err, "cannot "+action+" of "+spec.Name)
}

// nodeFailure adds what was requested to an error of a node.
func nodeFailure(err error, request string) error {
	var known *mariposa.Error
	if errors.As(err, &known) {
		e := mariposa.Errorf(known.Code, "%s: %s", request, known.Message)
		e.Node = known.Node
		return e
	}
	return mariposa.Errorf(mariposa.Unavailable, "%s: %w", request, err)
}
