package cli

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/charmbracelet/x/ansi"

	"mariposa"
)

// A style is a color with a meaning.
type style = ansi.Attr

const (
	none  style = 0
	good  style = ansi.AttrGreenForegroundColor  // as it should be
	busy  style = ansi.AttrYellowForegroundColor // in progress
	bad   style = ansi.AttrRedForegroundColor    // needs attention
	quiet style = ansi.AttrCyanForegroundColor   // held on purpose
	dim   style = ansi.AttrFaint
	bold  style = ansi.AttrBold
)

// styles of status words. Words not listed stay plain.
var styles = map[string]style{
	string(mariposa.StatusConverged): good, string(mariposa.MemberUp): good, string(mariposa.MemberDrain): busy, string(mariposa.MemberDown): bad, string(mariposa.StateRunning): good, string(mariposa.HealthHealthy): good, string(mariposa.TaskCompleted): good,
	string(mariposa.StatusConverging): busy, string(mariposa.StatePending): busy, string(mariposa.StateProvisioning): busy, string(mariposa.StateDraining): busy,
	string(mariposa.StateStopping): busy, string(mariposa.HealthStarting): busy, string(mariposa.TaskActive): busy, string(mariposa.NodeRebooting): busy,
	string(mariposa.StatusFailed): bad, string(mariposa.StatusBlocked): bad, string(mariposa.StatusBackingOff): bad, string(mariposa.StateUnknown): bad,
	string(mariposa.HealthUnhealthy): bad, string(mariposa.TaskTerminated): bad, string(mariposa.NodeRejected): bad,
	string(mariposa.StatusHeld): quiet, string(mariposa.StatusFrozen): quiet, string(mariposa.StatusPaused): quiet, string(mariposa.TaskQueued): quiet,
	string(mariposa.NodeDrained):  quiet,
	string(mariposa.StateStopped): dim, string(mariposa.StateDestroyed): dim,
}

// paint colors text, if it is set.
type paint bool

func (p paint) in(s style, text string) string {
	if !p || s == none || text == "" {
		return text
	}
	return ansi.NewStyle(s).Styled(text)
}

// paint returns the paint for a stream: colors are used only on terminals, and only if
// the user wants them.
func (a *app) paint(w io.Writer) paint {
	return paint(!a.global.noColor && a.env.Getenv("NO_COLOR") == "" && a.env.Getenv("TERM") != "dumb" && a.env.Terminal(w))
}

// plain removes control characters that would move the cursor or change the terminal,
// because much of the output was written by others.
func plain(s string) string {
	return strings.Map(func(r rune) rune {
		if r == '\t' || r == '\n' {
			return ' '
		}
		if unicode.IsControl(r) {
			return utf8.RuneError
		}
		return r
	}, s)
}

// cell is one field of a table.
type cell struct {
	text  string
	style style
}

func text(s string) cell { return cell{text: s} }

func number(n int) cell { return cell{text: fmt.Sprint(n)} }

// count formats a number, dimmed if it is zero.
func count(n int, s style) cell {
	if n == 0 {
		return cell{"0", dim}
	}
	return cell{fmt.Sprint(n), s}
}

// word formats a status word in its style.
func word[T ~string](s T) cell { return cell{string(s), styles[string(s)]} }

// table is aligned by the width of its text on a terminal.
type table struct {
	columns []column
	rows    [][]cell
	key     int      // the column that --quiet prints
	empty   string   // said instead of a table without rows; empty: its heading is printed
	spare   []string // headings of columns that are left out if the table is too wide, the first one first
}

func (t *table) add(cells ...cell) { t.rows = append(t.rows, cells) }

// lines lays out the whole table, heading first.
func (t *table) lines(p paint) []string { return t.part(p, math.MaxInt, 0, len(t.rows)) }

// part lays out the heading and a range of rows, cut to width. The columns are as wide as
// in the whole table, so that they do not move.
func (t *table) part(p paint, width, from, rows int) []string {
	wide, head := t.widths(), make([]cell, len(t.columns))
	for n, c := range t.columns {
		head[n] = cell{c.head, bold}
	}
	all := []string{layout(head, wide, p, width)}
	for _, row := range t.rows[from : from+rows] {
		all = append(all, layout(row, wide, p, width))
	}
	return all
}

// widths returns the width of each column.
func (t *table) widths() []int {
	wide := make([]int, len(t.columns))
	for n, c := range t.columns {
		wide[n] = cells(c.head)
	}
	for _, row := range t.rows {
		for n := range row {
			row[n].text = plain(row[n].text)
			wide[n] = max(wide[n], cells(row[n].text))
		}
	}
	return wide
}

func layout(row []cell, wide []int, p paint, width int) string {
	var b strings.Builder
	used, column := 0, 0
	for n, c := range row {
		if c.text != "" && column < width {
			shown := cut(c.text, width-column)
			b.WriteString(strings.Repeat(" ", column-used))
			b.WriteString(p.in(c.style, shown))
			used = column + cells(shown)
		}
		column += wide[n] + 2
	}
	return b.String()
}

// cells returns the width of a text in terminal cells: wide characters take two,
// combining ones none.
func cells(s string) int { return ansi.StringWidthWc(s) }

// cut shortens a text to a number of cells.
func cut(s string, width int) string {
	if cells(s) <= width {
		return s
	}
	left := width - cells("…")
	if left < 0 {
		return ""
	}
	end := strings.IndexFunc(s, func(r rune) bool {
		left -= cells(string(r))
		return left < 0
	})
	return s[:end] + "…"
}

// printJSON prints an API document with indentation, printLine on a single line.
func (a *app) printJSON(document any) error { return a.encode(document, "  ") }
func (a *app) printLine(document any) error { return a.encode(document, "") }

func (a *app) encode(document any, indent string) error {
	e := json.NewEncoder(a.env.Stdout)
	e.SetEscapeHTML(false)
	e.SetIndent("", indent)
	return e.Encode(document)
}

// say prints a line to standard output, note a line to standard error.
func (a *app) say(format string, args ...any) {
	if a.silent {
		return
	}
	fmt.Fprintln(a.env.Stdout, plain(fmt.Sprintf(format, args...)))
}

func (a *app) note(format string, args ...any) {
	if a.tableError != nil {
		return // it is all that is said
	}
	fmt.Fprintln(a.env.Stderr, plain(fmt.Sprintf(format, args...)))
}

// facts prints the properties of one object, one per line. It skips empty ones.
func (a *app) facts(pairs ...any) {
	t, p := newTable("", ""), a.paint(a.env.Stdout)
	for n := 0; n+1 < len(pairs); n += 2 {
		value, ok := pairs[n+1].(cell)
		if !ok {
			value = text(fmt.Sprint(pairs[n+1]))
		}
		if value.text != "" {
			t.add(cell{fmt.Sprint(pairs[n]), bold}, value)
		}
	}
	t.reword(a.repeatFlags)
	a.fold(t)
	for _, line := range t.lines(p)[1:] {
		fmt.Fprintln(a.env.Stdout, line)
	}
}

// now returns the time of the server's clock, as far as that is known: times in responses are
// those of the server, and the clock of this machine may be wrong.
func (a *app) now() time.Time {
	if a.server == nil {
		return a.env.Now()
	}
	return a.env.Now().Add(a.server.Ahead())
}

// age formats roughly how long ago a time was.
func (a *app) age(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return roughAge(a.now().Sub(t))
}

// ageOf formats how long ago something was; a dash if that is not known.
func (a *app) ageOf(t *time.Time) string {
	if t == nil {
		return "-"
	}
	return a.age(*t)
}

func roughAge(d time.Duration) string {
	switch d = max(0, d); {
	case d < 2*time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < 2*time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}

// remainingTime formats the time left, rounded to the nearest unit: 90 days that were
// just granted are shown as 90 days, not as 89.
func remainingTime(d time.Duration) string {
	unit := 24 * time.Hour
	switch {
	case d < 2*time.Minute:
		unit = time.Second
	case d < 2*time.Hour:
		unit = time.Minute
	case d < 48*time.Hour:
		unit = time.Hour
	}
	return roughAge(d.Round(unit))
}

// stamp formats a time in our time zone.
func (a *app) stamp(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.In(a.env.Now().Location()).Format("2006-01-02 15:04:05")
}

func (a *app) stampOf(t *time.Time) string {
	if t == nil {
		return ""
	}
	return a.stamp(*t)
}

// shortHash returns enough of a hash to identify it.
func shortHash(hash string) string { return hash[:min(len(hash), 8)] }

// shortVersion returns as much of a version's hash as the server needs to find it.
func shortVersion(hash string) string { return hash[:min(len(hash), 7)] }

// versionOf names a version by its number and hash.
func versionOf(number int, hash string) string {
	if number == 0 {
		return shortVersion(hash)
	}
	return fmt.Sprintf("%d (%s)", number, shortVersion(hash))
}

// plural formats a count with the right word for one and for more.
func plural(n int, one, more string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, more)
}

// dashIfEmpty returns a dash for an empty text.
func dashIfEmpty(s string) string { return cmp.Or(s, "-") }
