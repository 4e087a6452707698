package cli

import (
	"context"
	"strings"
	"testing"
	"time"

	"mariposa"
	"mariposa/client"
	"mariposa/contract"
)

// The first task of a rollout was terminated. Whoever submits its manifest again waits until that is
// in force, whatever task continues the rollout, and fails if it does.
func TestARepeatedUpdateWaitsUntilItsManifestIsInForce(t *testing.T) {
	t.Parallel()
	const needs = "services:\n  web: {compute_type: dummy, environment: {P: \"{{ .meta.p }}\"}, update: {min_healthy: 0MORE}DUMMY}\nmetadata: {p: {required: true}}\n"
	s := newTeamServer(t)
	for _, c := range []struct {
		name, more, dummy string
		goOn              bool // the rollout continues during the command
		code              int
		want              string
	}{
		{"completes", "", "", true, exitOK, "hello: version 2 (c0de00"},
		{"fails", "", ", dummy: {fail_prop: \"yes\"}", true, exitFailed, "of hello is not in force: web: "},
		{"is rolled back", ", on_failure: rollback", ", dummy: {fail_prop: \"yes\"}", true, exitFailed, "of hello is not in force: "},
		{"is stopped", "", "", true, exitFailed, "of hello is not in force: the project is stopped"},
		{"stalls", "", "", false, exitFailed, "of hello is not in force: no progress for "},
	} {
		t.Run(c.name, func(t *testing.T) {
			manifest := strings.NewReplacer("MORE", c.more, "DUMMY", c.dummy).Replace(needs)
			s.again(t, firstManifest)
			ctx := context.WithoutCancel(t.Context())
			first, err := s.UpdateManifest(ctx, "hello", []byte(manifest), client.Update{Force: true})
			must(t, err)
			s.await("the rollout begins", func() bool {
				task, err := s.Task(ctx, *first.Task)
				return err == nil && task.State == mariposa.TaskActive
			})
			_, err = s.TerminateTask(ctx, *first.Task)
			must(t, err)
			s.await("the freeze", func() bool {
				v, err := s.Service(ctx, "hello", "web")
				return err == nil && v.Frozen
			})
			thaw := func() {
				_, err := s.Act(ctx, "hello", contract.Action{Action: "thaw"})
				must(t, err)
			}
			r := &run{f: s.proxy(t), stdin: manifest}
			if c.goOn {
				said := &until{text: "hello/web is frozen: ", done: func() {
					if c.name == "is stopped" {
						_, err := s.Act(ctx, "hello", contract.Action{Action: "stop"})
						must(t, err)
						return
					}
					thaw()
					_, err := s.SetMetadata(ctx, "hello", "p", contract.MetadataValue{Value: []byte(`"x"`)}, client.KeyChange{})
					must(t, err)
				}}
				r.errs = said
			} else {
				thaw()
				r.stall = 100 * time.Millisecond
			}
			r.do(t, "project", "update", "hello", "-m", "-", "--force", "--wait")
			said := r.stdout + r.stderr
			if u, is := r.errs.(*until); is {
				said += u.String()
			}
			if r.code != c.code || !strings.Contains(said, c.want) {
				t.Errorf("exit %d, without %q:\n%s", r.code, c.want, said)
			}
		})
	}
}

// A manifest that is in force needs no wait, also if it is frozen or paused.
func TestARepeatedUpdateDoesNotWaitForWhatIsInForce(t *testing.T) {
	t.Parallel()
	s := newHello(t, oneWeb)
	for _, action := range []string{"", "freeze", "pause", "stop"} {
		if action == "pause" {
			s.act(contract.Action{Action: "thaw"})
		}
		if action != "" {
			_, err := s.Act(context.WithoutCancel(t.Context()), "hello", contract.Action{Action: action})
			must(t, err)
			s.await(action, func() bool {
				p, err := s.State(t.Context(), "hello", "")
				w := p.Projects[0]
				return err == nil && (w.Frozen || w.Paused || w.Status == mariposa.StatusStopped)
			})
		}
		r := (&run{f: s.proxy(t), stdin: oneWeb}).do(t, "project", "update", "hello", "-m", "-", "--force", "--wait")
		r.expect(exitOK, strings.Contains(r.stdout, "hello: nothing to do; "), !strings.Contains(r.stderr, "in force"))
	}
}

// One service is in force, whatever happens to the others.
func TestARepeatedServiceUpdateWaitsForItsServiceOnly(t *testing.T) {
	t.Parallel()
	s := newTeamServer(t)
	const a, bad = "compute_type: dummy\nscale: 1\n", "compute_type: dummy\nscale: 1\ndummy: {fail_prop: \"yes\"}\nupdate: {on_failure: pause}\n"
	s.again(t, "services:\n  a: {compute_type: dummy}\n  b: {compute_type: dummy}\n")
	for _, c := range []struct {
		service, definition string
		code                int
	}{{"a", a, exitOK}, {"b", bad, exitFailed}, {"a", a, exitOK}} {
		r := (&run{f: s.proxy(t), stdin: c.definition}).do(t, "-j", "hello", "service", "update", c.service, "-m", "-", "--wait")
		r.expect(c.code)
	}
}
