package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/colorprofile"
	"golang.org/x/sys/unix"

	"mariposa"
	"mariposa/client"
)

// A view is the content of a screen. Its methods are called one at a time, except for
// read, which may run concurrently with all others except show.
type view interface {
	// read reads the data again; show applies it.
	read(ctx context.Context) (show func(), err error)
	asOf() int64     // the revision of the last read
	over() bool      // the object shown no longer exists
	summary() string // a line above the sections; may be empty
	sections() []section
	// page prints the last read in full, after the screen is closed or if there is none.
	page() error
}

// readNow reads a view and applies the result, for callers that can block.
func readNow(ctx context.Context, v view) error {
	show, err := v.read(ctx)
	if err == nil {
		show()
	}
	return err
}

// A section is a table that scrolls when it does not fit.
type section struct {
	*table
	rowsAre string        // the name of its rows
	crowded func() *table // the same table, sorted for a small window; nil: unchanged
}

// A screen shows a view live, as the model of a bubbletea program. An event only signals
// that something changed. The data is then read again, at a limited rate.
type screen struct {
	a        *app
	c        *client.Client
	project  string // whose events to show; empty: all
	service  string // likewise, for the events listed
	pace     time.Duration
	ticks    bool // the view changes with time alone
	paged    bool // no terminal: one page per read
	maxReads int  // stop after this many reads; 0: when interrupted
	inside   bool // part of a server, which stops with the view
	vanishes bool // restore the terminal when the user quits
	view     view

	ctx   context.Context //nolint:containedctx // bubbletea calls commands without one
	send  func(tea.Msg)
	since int64 // where the stream begins
	keys  bool  // there is a keyboard

	stale bool          // something changed since the last read
	busy  bool          // a read is scheduled or in progress
	reads int           // number of reads
	took  time.Duration // how long the last read took
	err   error

	trouble string // connection trouble
	narrate *narrator
	latest  []string // events

	width, height int
	drawn         string
	scrolled      int // rows scrolled
	maxScroll     int // maximum of scrolled
	step          int // rows in a page
}

// hasScreen reports whether the output is a terminal that can be drawn on.
func (a *app) hasScreen() bool {
	return a.env.Terminal(a.env.Stdout) && !a.global.json && a.env.Getenv("TERM") != "dumb"
}

// Messages to a screen, in addition to keys and the window size.
type (
	// pastEvents are the events before the stream begins.
	pastEvents []client.Event
	// streamNews is what the stream delivers.
	streamNews struct {
		event *client.Event
		lost  string // connection trouble; empty: none
		err   error  // the stream has ended
	}
	// readDue says that it is time to read again.
	readDue struct{}
	// readResult is the result of a read.
	readResult struct {
		show func()
		err  error
		took time.Duration
	}
	// tick says that some time has passed.
	tick struct{}
)

// run draws until interrupted, on the alternate screen, so that the previous contents are
// restored in any case. The view has already been read once.
func (s *screen) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s.ctx, s.since, s.reads, s.narrate = ctx, s.view.asOf(), 1, s.a.newNarrator()
	if s.paged {
		if err := s.view.page(); err != nil {
			return err
		}
	}
	s.a.onScreen.Store(!s.paged)
	defer s.a.onScreen.Store(false)
	p := tea.NewProgram(s, s.options()...)
	s.send = p.Send
	s.draw()
	_, err := p.Run()
	if err = errors.Join(s.err, err); s.paged || errors.Is(err, tea.ErrProgramPanic) {
		return err
	}
	if s.vanishes && !s.view.over() && (s.maxReads == 0 || s.reads < s.maxReads) {
		return err
	}
	return errors.Join(err, s.view.page())
}

// options adapt the program to its environment. Signals end it through the context, like
// every command.
func (s *screen) options() []tea.ProgramOption {
	all := []tea.ProgramOption{tea.WithContext(s.ctx), tea.WithoutSignalHandler()}
	if s.paged {
		return append(all, tea.WithoutRenderer(), tea.WithInput(nil))
	}
	out, in := s.a.env.Stdout, s.a.keyboard()
	s.keys = in != nil
	s.width, s.height = s.a.env.Size(out)
	terminal := s.a.env.Getenv("TERM")
	if !s.keys {
		terminal = "vt100" // not queried: nobody could read the answer
	}
	// bubbletea does not query terminals over SSH. We never want a query: a late
	// answer would be typed into the shell.
	env := []string{"TERM=" + terminal, "SSH_TTY=any"}
	return append(all, tea.WithInput(in), tea.WithOutput(out), tea.WithEnvironment(env),
		tea.WithColorProfile(colorprofile.ANSI), tea.WithWindowSize(s.width, s.height))
}

// keyboard returns the input for keys; nil: none. A background job would be stopped when
// it reads from the terminal.
func (a *app) keyboard() io.Reader {
	if !a.env.Terminal(a.env.Stdin) {
		return nil
	}
	if f, ok := a.env.Stdin.(descriptor); ok {
		if group, err := unix.IoctlGetInt(int(f.Fd()), unix.TIOCGPGRP); err != nil || group != unix.Getpgrp() {
			return nil
		}
	}
	return a.env.Stdin
}

// Init starts the stream and the timers of the screen.
func (s *screen) Init() tea.Cmd {
	if s.ticks {
		return tea.Batch(s.follow, s.after(ticking, tick{}))
	}
	return s.follow
}

// View returns the last drawing. Drawing a large state for each event would take too
// long.
func (s *screen) View() tea.View {
	v := tea.NewView(s.drawn)
	v.AltScreen = true
	return v
}

// Update handles a message.
func (s *screen) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case pastEvents:
		for _, e := range msg {
			s.addEvent(e)
		}
		s.draw()
	case streamNews:
		return s, s.handleNews(msg)
	case readDue:
		s.stale = false
		return s, s.read
	case readResult:
		return s, s.show(msg)
	case tick:
		s.stale = true // measured values change by themselves
		s.draw()
		return s, tea.Batch(s.scheduleRead(), s.after(ticking, tick{}))
	case tea.KeyPressMsg:
		return s, s.press(msg.String())
	case tea.WindowSizeMsg:
		if msg.Width <= 0 || msg.Height <= 0 { // the size is unknown
			msg.Width, msg.Height = s.a.env.Size(nil)
			return s, func() tea.Msg { return msg }
		}
		s.width, s.height = msg.Width, msg.Height
		s.draw()
	}
	return s, nil
}

// press handles a key. A server stops with its view, so only Ctrl-C closes that view.
func (s *screen) press(key string) tea.Cmd {
	switch key {
	case "ctrl+c":
		return tea.Quit
	case "q", "esc":
		if !s.inside {
			return tea.Quit
		}
	case "ctrl+z":
		if session, err := unix.Getsid(0); err == nil && session != unix.Getpgrp() { // otherwise no shell would resume us
			return tea.Suspend
		}
	case "up":
		s.scrolled--
	case "down":
		s.scrolled++
	case "pgup":
		s.scrolled -= s.step
	case "pgdown":
		s.scrolled += s.step
	case "home":
		s.scrolled = 0
	case "end":
		s.scrolled = s.maxScroll
	}
	s.draw()
	return nil
}

// handleNews handles news from the stream and schedules a read.
func (s *screen) handleNews(n streamNews) tea.Cmd {
	if n.err != nil {
		s.err = n.err
		return tea.Quit
	}
	if n.event != nil {
		s.addEvent(*n.event)
	}
	if s.trouble != n.lost {
		s.trouble = n.lost
		s.draw()
	}
	s.stale = true
	return s.scheduleRead()
}

// scheduleRead schedules a read if one is needed and none is pending. Slow reads are
// repeated less often.
func (s *screen) scheduleRead() tea.Cmd {
	if !s.stale || s.busy {
		return nil
	}
	s.busy = true
	return s.after(max(s.pace, 2*s.took), readDue{})
}

// show draws the result of a read. While the server is unavailable, the last result stays
// visible.
func (s *screen) show(l readResult) tea.Cmd {
	s.busy, s.took = false, l.took
	s.reads++
	if l.err == nil {
		l.show()
	} else if mariposa.CodeOf(l.err) != mariposa.Unavailable {
		s.err = l.err
		return tea.Quit
	}
	s.draw()
	if s.paged {
		s.err = s.view.page()
	}
	if s.err != nil || s.view.over() || s.reads == s.maxReads {
		return tea.Quit
	}
	return s.scheduleRead()
}

func (s *screen) read() tea.Msg {
	began := time.Now()
	show, err := s.view.read(s.ctx)
	return readResult{show, err, time.Since(began)}
}

// after sends a message to the screen after a delay.
func (s *screen) after(d time.Duration, msg tea.Msg) tea.Cmd {
	return func() tea.Msg {
		select {
		case <-time.After(d):
			return msg
		case <-s.ctx.Done():
			return nil
		}
	}
}

// follow forwards the stream until the context ends or the server refuses. It starts with
// recent events; errors are ignored for those.
func (s *screen) follow() tea.Msg {
	if page, err := s.c.LatestEvents(s.ctx, s.project, latestEvents); err == nil {
		s.send(pastEvents(slices.DeleteFunc(page.Events, func(e client.Event) bool { return e.Revision > s.since }))) // the stream delivers those
	}
	o := client.StreamOptions{Since: s.since, Project: s.project}
	o.Lost = func(err error, _ time.Duration) { s.send(streamNews{lost: err.Error()}) }
	o.Found = func() { s.send(streamNews{}) }
	for {
		var last error
		for e, err := range s.c.Stream(s.ctx, o) {
			if last = err; err == nil {
				s.send(streamNews{event: &e})
			}
		}
		if mariposa.CodeOf(last) != mariposa.TooOld {
			return streamNews{err: last}
		}
		// The screen reads everything again on every event, so a gap does no harm.
		if o.Since, last = s.c.Revision(s.ctx); last != nil {
			return streamNews{err: last}
		}
		s.send(streamNews{})
	}
}

// ticking is the interval between reads of a view that changes by itself.
const ticking = 2 * time.Second

// latestEvents is the number of events that a screen keeps: enough to fill any window.
const latestEvents = 200

// addEvent adds an event to the latest ones.
func (s *screen) addEvent(e client.Event) {
	line, news := s.narrate.line(e)
	if !news || e.Kind == "task.progress" || s.service != "" && e.ServiceName != s.service {
		return
	}
	s.latest = append(s.latest, line)
	s.latest = slices.Delete(s.latest, 0, max(0, len(s.latest)-latestEvents))
}

// draw draws the header, connection trouble or the summary, then sections and events as
// far as they fit.
func (s *screen) draw() {
	if s.paged {
		return
	}
	p := s.a.paint(s.a.env.Stdout)
	summary := s.view.summary()
	lines := []string{p.in(bold, cut("mariposa at "+s.c.URL()+"   "+clockOf(s.a.env.Now, time.Time{}), s.width)), cut(summary, s.width)}
	if s.trouble != "" {
		lines[1] = p.in(bad, cut(plain(s.trouble), s.width))
	}
	if summary != "" {
		lines = append(lines, "")
	}
	sections := s.view.sections()
	wants := make([]int, 0, len(sections)+1)
	for _, t := range sections {
		wants = append(wants, len(t.rows)+2) // plus the heading and an empty line
	}
	rooms := shareRoom(s.height-len(lines)-1, append(wants, len(s.latest)))
	s.maxScroll, s.step = 0, s.height
	for n, t := range sections {
		lines = append(append(lines, s.layoutSection(p, t, rooms[n]-2)...), "")
	}
	s.scrolled = min(max(s.scrolled, 0), s.maxScroll)
	for _, line := range s.latest[len(s.latest)-rooms[len(sections)]:] {
		lines = append(lines, cut(line, s.width))
	}
	if len(lines) < s.height {
		lines = append(lines, p.in(dim, cut(s.footer(), s.width)))
	}
	s.drawn = strings.Join(lines[:min(len(lines), max(s.height, 1))], "\n")
}

// layoutSection lays out a section in a number of lines below its heading, scrolled
// within its limits.
func (s *screen) layoutSection(p paint, t section, room int) []string {
	if len(t.rows) <= max(room, 1) {
		return t.part(p, s.width, 0, len(t.rows))
	}
	if t.crowded != nil {
		t.table = t.crowded()
	}
	rows := max(room-1, 0)
	from := min(max(s.scrolled, 0), len(t.rows)-rows)
	s.maxScroll, s.step = max(s.maxScroll, len(t.rows)-rows), min(s.step, max(rows, 1))
	which := fmt.Sprintf("… %d to %d of %d %s", from+1, from+rows, len(t.rows), t.rowsAre)
	if rows == 0 {
		which = fmt.Sprintf("… %d %s", len(t.rows), t.rowsAre)
	}
	return append(t.part(p, s.width, from, rows), p.in(dim, cut(which, s.width)))
}

// shareRoom divides the room equally, and gives the rest to the first sections that need
// more.
func shareRoom(room int, wants []int) []int {
	room = max(0, room)
	got := make([]int, len(wants))
	for n, want := range wants {
		got[n] = min(want, room/len(wants))
	}
	left := room
	for _, g := range got {
		left -= g
	}
	for n, want := range wants {
		more := min(want-got[n], left)
		got[n], left = got[n]+more, left-more
	}
	return got
}

// footer explains the keys.
func (s *screen) footer() string {
	ends := "Ctrl-C closes only this view"
	switch {
	case s.inside:
		ends = "Ctrl-C to stop" // the caller decides what else stops
	case s.keys:
		ends = "q closes only this view"
	}
	if s.keys && s.maxScroll > 0 {
		return ends + "; arrows, PgUp, PgDn, Home and End scroll"
	}
	return ends
}
