package cli

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/charmbracelet/x/ansi"

	"mariposa"
	"mariposa/contract"
)

// progress returns the display for a task on standard error: a bar on a terminal, a line
// per change elsewhere.
func (a *app) progress() display {
	if a.env.Terminal(a.env.Stderr) && a.env.Getenv("TERM") != "dumb" {
		return &bar{a: a, w: a.env.Stderr, paint: a.paint(a.env.Stderr)}
	}
	return &lines{a: a, w: a.env.Stderr}
}

// frozenPhrase describes a freeze that has settled.
const frozenPhrase = "settled; nothing changes until the thaw"

// lines shows progress in logs and pipes.
type lines struct {
	a    *app
	w    io.Writer
	last string
	seen string // the project's last reason
	why  string // the task's last reason
	step string // the task's last progress, without its reason

	waits string // what the task waits for
}

func (l *lines) task(t *contract.Task, at time.Time) {
	line := fmt.Sprintf("%s: %s", describeTask(t), t.State)
	if t.State.Ended() {
		line += prefixed(" in ", took(t))
		if t.State == mariposa.TaskCompleted && t.Reason != l.why { // otherwise the error says why
			line += endReason(t)
		}
		l.say(line, at)
		return
	}
	if settledFreeze(t) {
		l.say(describeTask(t)+": "+frozenPhrase, at)
		return
	}
	if t.State == mariposa.TaskActive && t.Progress.Total > 0 {
		line = fmt.Sprintf("%s: %d of %d done", describeTask(t), t.Progress.Done, t.Progress.Total)
	}
	if line == l.step && t.Reason == l.why {
		return
	}
	l.step = line
	if t.Reason != l.why { // shown once: there may be thousands of lines
		l.why = t.Reason
		line += bracketed(t.Reason)
	}
	l.say(line, at)
}

func (l *lines) projectStatus(_ mariposa.Status, why string, at time.Time) {
	if why != "" && why != l.seen {
		l.seen = why
		l.say(why, at)
	}
}

func (l *lines) trouble(why string) {
	l.say(cmp.Or(why, "reconnected to the server; nothing was missed"), time.Time{})
}

// waiting says once what the task waits for: the rest of the time changes all the while.
func (l *lines) waiting(why, how string) {
	if why != "" && why != l.waits {
		l.say(how, time.Time{})
	}
	l.waits = why
}

func (l *lines) end() {}

func (l *lines) say(line string, at time.Time) {
	if line == l.last {
		return
	}
	l.last = line
	fmt.Fprintln(l.w, clockOf(l.a.env.Now, at)+" "+plain(line))
}

// clockOf formats the time of an event in our time zone. An event without a time is shown
// with the current time.
func clockOf(now func() time.Time, at time.Time) string {
	here := now()
	if at.IsZero() {
		at = here
	}
	return at.In(here.Location()).Format("15:04:05")
}

func took(t *contract.Task) string {
	if t.Started == nil || t.Finished == nil {
		return ""
	}
	return shortDuration(t.Finished.Sub(*t.Started))
}

// shortDuration formats a duration for people.
func shortDuration(d time.Duration) string {
	switch {
	case d < time.Second:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	case d < 10*time.Second:
		return fmt.Sprintf("%.1f s", d.Seconds())
	case d < time.Minute:
		return fmt.Sprintf("%d s", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%d min %d s", int(d.Minutes()), int(d.Seconds())%60)
	}
	return fmt.Sprintf("%d h %d min", int(d.Hours()), int(d.Minutes())%60)
}

// roughDuration formats an estimated duration, in whole seconds.
func roughDuration(d time.Duration) string {
	if d < 10*time.Second {
		return fmt.Sprintf("%d s", int(d.Seconds()))
	}
	return shortDuration(d)
}

// redraw is the minimum interval between two drawings of a line or screen.
const redraw = 100 * time.Millisecond

// bar shows progress on a terminal.
type bar struct {
	a     *app
	w     io.Writer
	paint paint

	mu      sync.Mutex // the timer also draws
	now     *contract.Task
	status  mariposa.Status // of the project; empty: unknown
	why     string
	waits   string // what the task waits for; empty: it goes on
	at      time.Time
	drawn   time.Time
	pending *time.Timer
	over    bool
}

func (b *bar) task(t *contract.Task, at time.Time) {
	b.update(func() { b.now, b.at, b.waits = t, at, "" })
}

func (b *bar) projectStatus(status mariposa.Status, why string, at time.Time) {
	b.update(func() { b.status, b.why, b.at = status, why, at })
}

func (b *bar) waiting(_, how string) {
	if how == "" && b.waits == "" {
		return
	}
	b.update(func() { b.waits = how })
}

func (b *bar) trouble(why string) { b.update(func() { b.why = why }) }

func (b *bar) update(change func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	change()
	now := b.a.env.Now()
	wait := redraw - now.Sub(b.drawn)
	if b.over || b.pending != nil {
		return
	}
	if wait <= 0 || b.drawn.IsZero() {
		b.draw(now)
		return
	}
	b.pending = time.AfterFunc(wait, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.pending = nil; !b.over {
			b.draw(b.a.env.Now())
		}
	})
}

func (b *bar) end() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.over {
		return
	}
	b.over = true
	if b.pending != nil {
		b.pending.Stop()
	}
	if b.now != nil {
		b.draw(b.a.env.Now())
		fmt.Fprintln(b.w)
	}
}

// draw redraws the line in place.
func (b *bar) draw(now time.Time) {
	b.drawn = now
	if b.now == nil {
		return
	}
	width, _ := b.a.env.Size(b.w)
	head, s, tail := barParts(b.now, b.status, cmp.Or(b.waits, b.why), b.at)
	left := max(0, width-1)
	head = cut(plain(head), left)
	left -= cells(head)
	s.text = cut(s.text, left)
	left -= cells(s.text)
	fmt.Fprint(b.w, "\r", head, b.paint.in(s.style, s.text), cut(plain(tail), left), ansi.EraseLineRight)
}

const barWidth = 24

// barParts returns the line in three parts, of which the middle one is colored. The
// estimated time left is shown only while the project converges.
func barParts(t *contract.Task, status mariposa.Status, why string, at time.Time) (head string, middle cell, tail string) {
	head = describeTask(t) + " "
	if t.State.Ended() {
		return head, cell{string(t.State), styles[string(t.State)]}, prefixed(" in ", took(t))
	}
	if settledFreeze(t) {
		return head, cell{frozenPhrase, quiet}, ""
	}
	done, total := t.Progress.Done, t.Progress.Total
	if t.State == mariposa.TaskQueued || total <= 0 {
		return head, word(t.State), prefixed("  ", cmp.Or(t.Reason, why))
	}
	middle = cell{drawnBar(t.Progress, barWidth), busy}
	tail = fmt.Sprintf(" %d/%d %3d%%", done, total, percent(t.Progress))
	getsOn := status == "" || status == mariposa.StatusConverging || status == mariposa.StatusConverged
	if left := remaining(t, at); left > 0 && getsOn {
		tail += "  " + roughDuration(left) + " left"
	}
	return head, middle, tail + prefixed("  ", cmp.Or(why, t.Reason))
}

// drawnBar draws progress as a bar of the given width.
func drawnBar(p mariposa.Progress, width int) string {
	full := 0
	if p.Total > 0 {
		full = min(width, p.Done*width/p.Total)
	}
	return strings.Repeat("█", full) + strings.Repeat("░", width-full)
}

func percent(p mariposa.Progress) int {
	if p.Total == 0 {
		return 0
	}
	return min(100, p.Done*100/p.Total)
}

// remaining returns the remaining time of a task, as estimated by the server; 0: unknown.
func remaining(t *contract.Task, at time.Time) time.Duration {
	if t.ETA == nil || t.State != mariposa.TaskActive || at.IsZero() {
		return 0
	}
	return max(0, t.ETA.Sub(at).Round(time.Second))
}
