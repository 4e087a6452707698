package cli

import (
	"strings"
	"testing"
	"time"

	"mariposa"
	"mariposa/client"
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
