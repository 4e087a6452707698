package cli

import (
	"strings"
	"testing"
	"time"

	"mariposa"
	"mariposa/client"
	"mariposa/reason"
)

func TestEventsOfAnotherDayHaveADateAndNoneIsToldTwice(t *testing.T) {
	t.Parallel()
	at := func(hours int, kind, service, reason string) client.Event {
		var e client.Event
		e.Time, e.Kind, e.Project, e.ProjectName, e.ServiceName, e.Reason = noon.Add(time.Duration(hours)*time.Hour), kind, helloID, "hello", service, reason
		return e
	}
	n := newNarrator(func() time.Time { return noon.Add(24 * time.Hour) })
	got := strings.Join(n.lines([]client.Event{
		at(0, "service.converging", "web", "1 of 2 running"),
		at(1, "service.converging", "web", "1 of 2 running"),
		at(2, "service."+string(mariposa.StatusBackingOff), "web", "failed"),
		at(20, "project.converged", "", ""),
		at(21, "project.converged", "", ""),
	}), "\n")
	want := "2026-03-01 12:00:00 hello/web is converging (1 of 2 running)\n2026-03-01 14:00:00 hello/web is backing off (failed)\n08:00:00 hello is converged"
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// Events about nodes are sentences that do not contradict themselves.
func TestEventsAboutNodesAreSentences(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		kind string
		why  mariposa.Reason
		says string
	}{
		{"nodes.storm_began", mariposa.Reason{Code: mariposa.ReasonStormBegan, Count: 3, Of: 5, Since: noon}, "rescheduling stopped (3 of 5 nodes with instances have been lost since 12:00:00 UTC; their instances are not replaced until they return)"},
		{"nodes.storm_ended", mariposa.Reason{Code: mariposa.ReasonStormEnded}, "rescheduling continues (the lost nodes are back or were removed)"},
		{"nodes.storm_ended", mariposa.Reason{Code: mariposa.ReasonStormEnded, Count: 1}, "rescheduling continues (1 node is still lost; its instances are replaced)"},
		{"node.quarantine", mariposa.Reason{Code: mariposa.ReasonQuarantine, Count: 1}, "node node1 has instances in quarantine (found 1 instance that this store does not know; it is left running until purged)"},
		{"node.quarantine", mariposa.Reason{Code: mariposa.ReasonQuarantineOver}, "node node1 has nothing in quarantine any more"},
		{"node.copy_refused", mariposa.Reason{Code: mariposa.ReasonCopyRefused, Subject: "10.0.0.9"}, "node node1 was copied (an agent at 10.0.0.9 uses a copy of the data directory of this node and was refused; stop it, or give it an empty data directory)"},
		{"node.given_up", mariposa.Reason{Code: mariposa.ReasonRescheduledNow, Subject: "ann"}, "node node1 is given up (ann asked to replace its instances now)"},
		{"node.drain_stopped", mariposa.Reason{Code: mariposa.ReasonDrainStopped, Subject: "ann", Node: "node1"}, "node node1 has stopped draining ("},
	} {
		e := client.Event{}
		e.Time, e.Kind, e.Reason, e.ReasonCode = noon, c.kind, reason.Sentence(&c.why), c.why.Code
		if strings.HasPrefix(c.kind, "node.") {
			e.Node, e.NodeName = nodeOne, "node1"
		}
		if got := strings.Join(newNarrator(func() time.Time { return noon }).lines([]client.Event{e}), "\n"); !strings.HasPrefix(got, "12:00:00 "+c.says) {
			t.Errorf("%s is told as\n%s\nand not\n%s", c.kind, got, c.says)
		}
	}
}

// Sentences about teams name who and what they are about.
func TestSentencesAboutTeamsNameEverybody(t *testing.T) {
	t.Parallel()
	s := newTeamServer(t)
	for _, c := range []struct{ args, says string }{
		{"org create guild", "guild"},
		{"org add guild bob", "bob is now a member of guild\n"},
		{"org add guild bob --role owner", "bob is now an owner of guild\n"},
		{"user create vera", "vera"},
		{"events", "organization guild was created by"},
		{"events", "organization guild was updated by"},
		{"events", "user vera was created by"},
		{"-o guild project show shop", `there is no project "shop" in organization "guild"`},
	} {
		if r := (&run{f: s.proxy(t)}).do(t, strings.Fields(c.args)...); !strings.Contains(r.stdout+r.stderr, c.says) {
			t.Errorf("%s says\n%s%s\nand not %q", c.args, r.stdout, r.stderr, c.says)
		}
	}
}
