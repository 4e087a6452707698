package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"
	"pgregory.net/rapid"

	"mariposa"
	"mariposa/client"
	"mariposa/contract"
)

// shown returns a view on a screen that handles only the messages a test sends.
func shown(t *testing.T, f *proxy, colors bool, set func(a *app, c *client.Client) *screen) *screen {
	t.Helper()
	url := "http://server:1"
	if f != nil {
		url = f.url
	}
	c, err := client.New(client.Options{URL: url, Token: secret, Insecure: true})
	must(t, err)
	t.Cleanup(c.Close)
	a := &app{env: Env{Now: func() time.Time { return noon.Add(10 * time.Minute) }, Terminal: func(any) bool { return colors }, Getenv: func(string) string { return "" }}.withDefaults()}
	s := set(a, c)
	s.a, s.c, s.ctx, s.reads, s.keys, s.narrate = a, c, t.Context(), 1, true, a.newNarrator()
	if f != nil {
		must(t, readNow(t.Context(), s.view))
	}
	return s
}

func watching(state *contract.State) func(a *app, c *client.Client) *screen {
	return func(a *app, c *client.Client) *screen {
		w := a.watcher(c, "", "")
		w.state = state
		return &screen{view: w}
	}
}

func overlooking(now overviewNow) func(a *app, c *client.Client) *screen {
	return func(a *app, c *client.Client) *screen {
		return &screen{view: &overview{a: a, c: c, now: now}}
	}
}

// tells sends messages to the screen and returns its content.
func (s *screen) tells(msgs ...tea.Msg) string {
	for _, msg := range msgs {
		s.Update(msg)
	}
	return s.View().Content
}

func window(width, height int) tea.Msg { return tea.WindowSizeMsg{Width: width, Height: height} }

var (
	up       = tea.KeyPressMsg{Code: tea.KeyUp}
	down     = tea.KeyPressMsg{Code: tea.KeyDown}
	pageUp   = tea.KeyPressMsg{Code: tea.KeyPgUp}
	pageDown = tea.KeyPressMsg{Code: tea.KeyPgDown}
	home     = tea.KeyPressMsg{Code: tea.KeyHome}
	end      = tea.KeyPressMsg{Code: tea.KeyEnd}
	escape   = tea.KeyPressMsg{Code: tea.KeyEscape}
	q        = tea.KeyPressMsg{Code: 'q', Text: "q"}
	ctrlC    = tea.KeyPressMsg{Code: 'c', Mod: tea.ModCtrl}
)

// happened returns events as stream messages.
func happened(events ...contract.Event) (all []tea.Msg) {
	for _, e := range events {
		text, _ := json.Marshal(e)
		n := streamNews{event: &client.Event{}}
		_ = json.Unmarshal(text, n.event) // as it comes from a server
		all = append(all, n)
	}
	return all
}

// quits reports whether a screen ends on a message.
func (s *screen) quits(msg tea.Msg) bool {
	_, cmd := s.Update(msg)
	if cmd == nil {
		return false
	}
	_, quit := cmd().(tea.QuitMsg)
	return quit
}

func TestKeysEndAViewAndNothingElse(t *testing.T) {
	t.Parallel()
	f := newHello(t, oneWeb).proxy(t)
	for _, key := range []tea.KeyPressMsg{q, escape, ctrlC} {
		if s := shown(t, f, false, watching(nil)); !s.quits(key) || s.err != nil {
			t.Errorf("%s does not end the view: %v", key, s.err)
		}
		s := shown(t, f, false, watching(nil))
		if s.inside = true; s.quits(key) != (key == ctrlC) {
			t.Errorf("where a server would end with the view, %s is not taken for what it is", key)
		}
	}
	if s := shown(t, f, false, watching(nil)); s.quits(tea.KeyPressMsg{Code: 'x', Text: "x"}) {
		t.Error("any key ends the view")
	}
	for _, command := range []string{"state -w", "top"} {
		r := (&run{f: f, tty: true, stdin: "q"}).do(t, strings.Fields(command)...)
		left := strings.Contains(after1049(r.stdout), "hello") // the state stays; of many tables, nothing
		r.expect(exitOK, strings.Contains(r.stdout, "\x1b[?1049h"), left == (command != "top"))
	}
}

// after1049 returns the output after the alternate screen was closed.
func after1049(out string) string {
	_, rest, _ := strings.Cut(out, "\x1b[?1049l")
	return rest
}

// manyProjects returns n projects, of which only the last needs attention.
func manyProjects(n int) *contract.State {
	s := &contract.State{}
	for i := range n {
		s.Projects = append(s.Projects, contract.ProjectState{Name: fmt.Sprintf("p%02d", i+1), Status: mariposa.StatusConverged})
	}
	s.Projects[n-1].Status = mariposa.StatusBlocked
	return s
}

func TestWhatHasNoRoomIsScrolled(t *testing.T) {
	t.Parallel()
	for name, set := range map[string]func(a *app, c *client.Client) *screen{"state": watching(manyProjects(30)), "top": overlooking(overviewNow{State: manyProjects(30)})} {
		s := shown(t, nil, false, set)
		s.tells(window(80, 14))
		for _, c := range []struct {
			key         tea.KeyPressMsg
			first, last string
		}{
			{home, "p30", "p0"}, // projects that need attention come first
			{down, "p01", "p0"},
			{up, "p30", "p0"},
			{up, "p30", "p0"},
			{pageDown, "p0", "p1"},
			{pageUp, "p30", "p0"},
			{end, "p2", "p29"},
			{down, "p2", "p29"},
			{pageDown, "p2", "p29"},
			{home, "p30", "p0"},
		} {
			var rows []string
			for _, line := range strings.Split(s.tells(c.key), "\n") {
				if strings.HasPrefix(line, "p") {
					rows = append(rows, line)
				}
			}
			if len(rows) < 5 || !strings.HasPrefix(rows[0], c.first) || !strings.HasPrefix(rows[len(rows)-1], c.last) {
				t.Errorf("%s: %s shows %q", name, c.key, rows)
			}
		}
		if got := s.View().Content; !strings.Contains(got, " of 30 ") || !strings.Contains(got, "PgDn") {
			t.Errorf("%s does not say that there is more:\n%s", name, got)
		}
		if got := s.tells(end, window(80, 50)); !strings.Contains(got, "p01") || strings.Contains(got, "PgDn") {
			t.Errorf("%s does not show all in a large window:\n%s", name, got)
		}
	}
}

// Any number of events during a read causes one more read.
func TestAScreenLooksOnceForManyNews(t *testing.T) {
	t.Parallel()
	s := shown(t, newHello(t, oneWeb).proxy(t), false, watching(nil))
	wanted := func(msg tea.Msg) bool {
		_, cmd := s.Update(msg)
		return cmd != nil
	}
	one := happened(projectEvent(8, "held", ""))[0]
	if !wanted(one) || wanted(one) || !wanted(readDue{}) || wanted(one) || wanted(one) {
		t.Error("news are not gathered")
	}
	if !wanted(readResult{show: func() {}}) || !wanted(readDue{}) || wanted(readResult{show: func() {}}) {
		t.Error("news that come during a look are not seen to, or too often")
	}
}

func TestWithoutItsServerAScreenKeepsTheLastLook(t *testing.T) {
	t.Parallel()
	server := newTeamServer(t)
	server.slowHello(t)
	f := server.proxy(t)
	s := shown(t, f, false, watching(nil))
	s.tells(window(80, 20))
	if got := s.tells(streamNews{lost: "cannot reach it"}, readResult{err: mariposa.Errorf(mariposa.Unavailable, "nobody there")}); s.err != nil || !strings.Contains(got, "cannot reach it") || !strings.Contains(got, "hello/web") {
		t.Errorf("%v\n%s", s.err, got)
	}
	if got := s.tells(streamNews{}); strings.Contains(got, "cannot reach it") {
		t.Errorf("it is not seen that the server is back:\n%s", got)
	}
	if !s.quits(readResult{err: mariposa.Errorf(mariposa.Unauthorized, "who are you")}) || mariposa.CodeOf(s.err) != mariposa.Unauthorized {
		t.Errorf("a refusal does not end it: %v", s.err)
	}
	if s := shown(t, f, false, watching(nil)); !s.quits(streamNews{err: mariposa.Errorf(mariposa.Forbidden, "no")}) || s.err == nil {
		t.Error("the end of the stream does not end it")
	}
}

// If the size of a terminal is unknown, the usual size is assumed.
func TestAScreenWithoutASize(t *testing.T) {
	t.Parallel()
	s := shown(t, newHello(t, oneWeb).proxy(t), false, watching(nil))
	_, cmd := s.Update(window(0, 0))
	if got := s.tells(cmd()); s.width != 80 || s.height != 24 || !strings.Contains(got, "hello") {
		t.Errorf("%d by %d:\n%s", s.width, s.height, got)
	}
}

// Text written by others can neither move the cursor nor change the terminal.
func TestHostileTextOnAScreenIsPlain(t *testing.T) {
	t.Parallel()
	evil := "\x1b[2J\x1b]0;owned\x07\r\n\u009b31m\x00"
	state := &contract.State{Projects: []contract.ProjectState{{Name: evil, Status: mariposa.Status(evil), Reason: evil, Services: []contract.ServiceState{{Name: evil, Reason: evil}}}}}
	hostile := task(mariposa.TaskActive, 1, 2)
	hostile.Reason, hostile.ProjectName = evil, evil
	now := overviewNow{State: state, Tasks: []contract.Task{hostile}, Nodes: []contract.Node{{Name: evil, Reason: evil}}}
	for name, set := range map[string]func(a *app, c *client.Client) *screen{"state": watching(state), "top": overlooking(now)} {
		s := shown(t, nil, false, set)
		got := s.tells(append(happened(projectEvent(8, "held", evil)), streamNews{lost: evil}, window(200, 40))...)
		if !strings.Contains(got, "owned") || plain(strings.ReplaceAll(got, "\n", "")) != strings.ReplaceAll(got, "\n", "") {
			t.Errorf("%s shows %q", name, got)
		}
	}
}

// odd generates text of narrow, wide and combining characters.
func odd(most int) *rapid.Generator[string] {
	return rapid.StringOfN(rapid.SampledFrom([]rune("ab 界語é\u0301😀…")), 0, most, -1)
}

func TestScreensFitAnyWindow(t *testing.T) {
	t.Parallel()
	c, err := client.New(client.Options{URL: "http://server:1", Insecure: true})
	must(t, err)
	defer c.Close()
	a := &app{env: Env{Now: func() time.Time { return noon }, Terminal: func(any) bool { return true }, Getenv: func(string) string { return "" }}.withDefaults()}
	rapid.Check(t, func(t *rapid.T) {
		now := overviewNow{State: &contract.State{}}
		for range rapid.IntRange(0, 40).Draw(t, "projects") {
			now.State.Projects = append(now.State.Projects, contract.ProjectState{Name: odd(9).Draw(t, "name"), Status: mariposa.StatusBlocked, Reason: odd(150).Draw(t, "reason")})
		}
		for range rapid.IntRange(0, 40).Draw(t, "tasks") {
			now.Tasks = append(now.Tasks, task(mariposa.TaskActive, rapid.IntRange(0, 9).Draw(t, "done"), 5))
		}
		for range rapid.IntRange(0, 40).Draw(t, "nodes") {
			now.Nodes = append(now.Nodes, helloNodes()...)
		}
		s := &screen{a: a, c: c, keys: true, view: &overview{a: a, c: c, now: now}}
		if rapid.Bool().Draw(t, "watch") {
			w := a.watcher(c, "", "")
			s.view, w.state = w, now.State
		}
		for range rapid.IntRange(0, 20).Draw(t, "events") {
			s.latest = append(s.latest, odd(150).Draw(t, "event"))
		}
		s.trouble = odd(100).Draw(t, "trouble")
		width, height := rapid.IntRange(1, 200).Draw(t, "width"), rapid.IntRange(1, 80).Draw(t, "height")
		s.tells(window(width, height))
		for _, key := range rapid.SliceOfN(rapid.SampledFrom([]tea.Msg{up, down, pageUp, pageDown, home, end}), 1, 10).Draw(t, "keys") {
			lines := strings.Split(s.tells(key), "\n")
			if len(lines) > height {
				t.Fatalf("%d lines for a height of %d", len(lines), height)
			}
			for _, line := range lines {
				if n := cells(ansi.Strip(line)); n > width {
					t.Fatalf("%d cells for a width of %d: %q", n, width, line)
				}
			}
		}
	})
}

func TestRoomIsSharedAmongThoseWhoWantIt(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		room := rapid.IntRange(-5, 100).Draw(t, "room")
		wants := rapid.SliceOfN(rapid.IntRange(0, 60), 1, 5).Draw(t, "wants")
		total, wanted := 0, 0
		for n, got := range shareRoom(room, wants) {
			if got < min(wants[n], max(0, room)/len(wants)) || got > wants[n] {
				t.Fatalf("%d wants %d and gets %d", n, wants[n], got)
			}
			total, wanted = total+got, wanted+wants[n]
		}
		if total != min(wanted, max(0, room)) {
			t.Fatalf("%d of %d given to %v", total, room, wants)
		}
	})
}

func TestTablesAreAlignedByCells(t *testing.T) {
	t.Parallel()
	tab := newTable("NAME", "STATUS")
	for _, name := range []string{"web", "世界", "e\u0301te\u0301", "😀"} {
		tab.add(text(name), text("here"))
	}
	for _, line := range tab.lines(false)[1:] {
		if before, _, _ := strings.Cut(line, "here"); cells(before) != 6 {
			t.Errorf("%q begins its second column after %d cells", line, cells(before))
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		s, width := odd(20).Draw(t, "text"), rapid.IntRange(-1, 45).Draw(t, "width")
		got := cut(s, width)
		kept, marked := strings.CutSuffix(got, "…")
		switch {
		case cells(s) <= width && got != s:
			t.Fatalf("%q has room in %d and became %q", s, width, got)
		case cells(s) > width && (cells(got) > max(width, 0) || width > 0 && (!marked || !strings.HasPrefix(s, kept) || cells(got) < width-1)):
			t.Fatalf("%q became %q for %d", s, got, width)
		}
	})
}

// A panic restores the terminal.
func TestAPanicGivesTheTerminalBack(t *testing.T) {
	t.Parallel()
	server := newHello(t, oneWeb)
	f := server.proxy(t)
	server.whenFollowed(f, func() { server.scaleTo("2") })
	s := shown(t, f, true, watching(nil))
	drawn := make(chan struct{})
	out := &until{text: "hello", done: sync.OnceFunc(func() { close(drawn) })}
	s.a.env.Stdout, s.a.env.Stdin = out, strings.NewReader("")
	s.view = &broken{view: s.view, when: drawn}
	if err := s.run(t.Context()); err == nil || !strings.Contains(after1049(out.String()), "\x1b[?25h") {
		t.Errorf("%v: %q", err, out.String())
	}
}

// broken is a view that cannot be read.
type broken struct {
	view
	when chan struct{}
}

func (b *broken) read(context.Context) (func(), error) {
	<-b.when
	panic("broken on purpose, by a test")
}
