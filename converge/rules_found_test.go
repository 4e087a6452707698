package converge

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"mariposa"
)

// listener records the first violation of a rule.
type listener struct{ heard string }

func (l *listener) Helper() {}

// Fatalf ends the calling goroutine, like that of a test.
func (l *listener) Fatalf(format string, args ...any) {
	l.heard = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

// listen returns the violation that f reports; empty: none.
func listen(w *world, f func()) string {
	l := &listener{}
	w.complainer = l
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	<-done
	return l.heard
}

// TestTheRulesFindWhatTheyAreFor gives each rule a plan that violates it.
func TestTheRulesFindWhatTheyAreFor(t *testing.T) {
	t.Parallel()
	create := func(w *world, to string) Step {
		return Step{Action: Create, Service: "web", Slot: 2, Number: 2, Bindings: &mariposa.Bindings{To: map[string]mariposa.Binding{
			"db": {Instance: to, Values: map[string]string{"id": w.instances["db.1-1"].Status.PhysicalID}},
		}}}
	}
	remove := Step{Action: Remove, Service: "db", Instance: "db.1-1"}
	for _, c := range []struct {
		name  string
		steps func(w *world) []Step
		want  string // empty: no violation
	}{
		{"what is referred to goes", func(*world) []Step { return []Step{remove} }, "web.1-2 refers to it"},
		{"what is referred to goes while its referrer stops", func(w *world) []Step {
			w.do(Step{Action: Remove, Service: "web", Instance: "web.1-2"}, nil)
			return []Step{remove}
		}, "web.1-2 refers to it"},
		{"what is referred to goes after its referrer", func(w *world) []Step {
			w.do(Step{Action: Remove, Service: "web", Instance: "web.1-2"}, nil)
			w.move("web.1-2")
			return []Step{remove}
		}, ""},
		{"what is referred to goes, as a person wants none of it", func(w *world) []Step {
			w.scale("db", 0)
			return []Step{remove}
		}, ""},
		{"what is referred to goes, and its referrer cannot be reached", func(w *world) []Step {
			w.loseNode(w.instances["web.1-2"].Spec.Node)
			return []Step{remove}
		}, ""},
		{"one is made that refers to the running", func(w *world) []Step { return []Step{create(w, "db.1-1")} }, ""},
		{"one is made that refers to nothing", func(w *world) []Step { return []Step{create(w, "db.1-9")} }, "which does not run"},
		{"one is made that refers to the failed", func(w *world) []Step {
			w.fail("db.1-1")
			return []Step{create(w, "db.1-1")}
		}, "which does not run"},
		{"one is made that refers to what is started again in place", func(w *world) []Step {
			w.setState("db.1-1", mariposa.StateProvisioning, "")
			return []Step{create(w, "db.1-1")}
		}, ""},
		{"one is made that refers to what goes", func(w *world) []Step {
			w.scale("db", 0)
			return []Step{create(w, "db.1-1"), remove}
		}, "which goes"},
		{"one is made of a version that never was", func(w *world) []Step {
			return []Step{{Action: Create, Service: "db", Slot: 2, Number: 1}}
		}, "there never was one of version 1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, def("db", "zero", 0))
			w.submit(def("db", "one", 1), def("web", "one", 1, refersTo("db.id")))
			w.settle()
			steps := c.steps(w)
			heard := listen(w, func() { w.holdToRules(whole{Plan: Plan{Steps: steps, Services: w.goal.Services}}) })
			if (c.want == "") != (heard == "") || !strings.Contains(heard, c.want) {
				t.Errorf("the rules say %q, want %q", heard, c.want)
			}
		})
	}
}
