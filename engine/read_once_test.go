package engine

import (
	"slices"
	"testing"

	"mariposa"
	"mariposa/clock/clocktest"
	"mariposa/converge"
	"mariposa/picture"
	"mariposa/store"
	"mariposa/store/memory"
)

// The picture may advance while a turn runs. A turn that joins a shared network must not
// overwrite who joined it in between: the network would be removed with its other users.
func TestATurnDoesNotOverwriteWhoJoinedANetworkMeanwhile(t *testing.T) {
	t.Parallel()
	const org = "11111111-0000-7000-8000-000000000001"
	id := mariposa.NetworkID(org, "backend")
	for name, users := range map[string][]string{"a new network": nil, "a network of others": {"blog"}, "a network that the project uses": {"shop"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := t.Context()
			st := memory.New(clocktest.New())
			p, err := picture.Open(ctx, st)
			if err != nil {
				t.Fatal(err)
			}
			write := func(users ...string) {
				t.Helper()
				spec := &mariposa.NetworkSpec{Name: "backend", Organization: org, Users: users}
				var unit store.Unit
				unit.Put(store.Write{Kind: mariposa.KindNetwork, ID: id, Spec: spec})
				if err := st.Commit(ctx, unit)[0].Err; err != nil {
					t.Fatal(err)
				}
				if _, err := p.Advance(ctx); err != nil {
					t.Fatal(err)
				}
			}
			if users != nil {
				write(users...)
			}

			turn := &turn{
				actor: &actor{e: &Engine{Options: Options{Store: st, Picture: p}}, project: "shop"},
				spec:  &mariposa.ProjectSpec{Name: "shop", Organization: org},
			}
			step := converge.Step{Service: "web", Instance: "i1"}
			join := mariposa.Join{Network: id, Attachment: mariposa.AttachmentID(id, "n1", mariposa.ComputeDocker), Name: "backend"}
			turn.join(step, join, true)
			write(append(users, "wiki")...)
			turn.attach(step, join, &mariposa.InstanceSpec{Name: "web-1", Node: "n1", Compute: mariposa.ComputeDocker})

			if err := st.Commit(ctx, turn.unit)[0].Err; err == nil {
				t.Error("the turn was committed on a network that has changed")
			}
			r, err := st.Get(ctx, mariposa.KindNetwork, id)
			if err != nil {
				t.Fatal(err)
			}
			if now := r.Spec.(*mariposa.NetworkSpec).Users; !slices.Equal(now, append(users, "wiki")) {
				t.Errorf("the users are %v", now)
			}
		})
	}
}
