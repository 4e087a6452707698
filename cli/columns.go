package cli

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/charmbracelet/x/ansi"
	"github.com/spf13/pflag"
)

// tableFlags control how tables are printed.
type tableFlags struct {
	quiet, noHeader, wide bool
	columns               []string
}

func (f *tableFlags) add(to *pflag.FlagSet) {
	to.BoolVarP(&f.quiet, "quiet", "q", false, "print only names or ids")
	to.BoolVar(&f.noHeader, "no-header", false, "print tables without a header")
	to.StringSliceVar(&f.columns, "columns", nil, "print only these table columns, such as name,status")
	to.BoolVar(&f.wide, "wide", false, "print all table columns, without fitting them to the width of the terminal")
}

// A column is a column of a table.
type column struct {
	head string
	when visibility
}

// visibility decides when a column is shown. --columns and --wide can show every column.
type visibility byte

const (
	always    visibility = iota
	ifUseful             // only if a row has a value in it
	onRequest            // only with --columns or --wide
)

// Suffixes of headings passed to newTable.
const (
	usefulMark  = "?"
	requestMark = "+"
)

// newTable creates a table. A column whose heading ends in ? is shown only if a row has a
// value in it. One whose heading ends in + is shown only on request.
func newTable(head ...string) *table {
	t := &table{}
	for _, h := range head {
		c := column{head: h}
		if rest, ok := strings.CutSuffix(h, usefulMark); ok {
			c = column{rest, ifUseful}
		} else if rest, ok := strings.CutSuffix(h, requestMark); ok {
			c = column{rest, onRequest}
		}
		t.columns = append(t.columns, c)
	}
	return t
}

// keyed sets the column that --quiet prints, if it is not the first.
func (t *table) keyed(head string) *table {
	t.key = slices.IndexFunc(t.columns, func(c column) bool { return c.head == head })
	return t
}

// ifEmpty sets the text to print instead of a table without rows.
func (t *table) ifEmpty(format string, args ...any) *table {
	t.empty = fmt.Sprintf(format, args...)
	return t
}

// sparing sets the columns to leave out if the table is too wide, the least useful one first.
func (t *table) sparing(heads ...string) *table {
	t.spare = heads
	return t
}

// choose returns a table with only those of the given columns that it has.
func (t *table) choose(columns []string) *table {
	var at []int
	for _, name := range columns {
		if n := t.find(name); n >= 0 {
			at = append(at, n)
		}
	}
	return t.pick(at)
}

// find returns the index of a column; -1: there is none.
func (t *table) find(name string) int {
	return slices.IndexFunc(t.columns, func(c column) bool { return strings.EqualFold(c.head, strings.TrimSpace(name)) })
}

// checkColumns checks that each column that the user wants is in one of the tables that
// a command prints. A command that prints anything before its table checks it first.
func (a *app) checkColumns(tables ...*table) error {
	if a.global.json || a.columnsChecked {
		return a.tableError
	}
	a.columnsChecked = true
	for _, name := range a.global.table.columns {
		if slices.ContainsFunc(tables, func(t *table) bool { return t.find(name) >= 0 }) {
			continue
		}
		var heads []string
		for _, t := range tables {
			heads = append(heads, t.heads()...)
		}
		a.tableError = Usage(fmt.Errorf("there is no column %q; available columns: %s", name, strings.ToLower(strings.Join(heads, ", "))))
		break
	}
	return a.tableError
}

// reword changes the text of every cell.
func (t *table) reword(as func(string) string) {
	for _, row := range t.rows {
		for n := range row {
			row[n].text = as(row[n].text)
		}
	}
}

func (t *table) heads() []string {
	var all []string
	for _, c := range t.columns {
		if c.head != "" {
			all = append(all, c.head)
		}
	}
	return all
}

// useful returns a table without empty columns and without those that are shown only on
// request.
func (t *table) useful() *table {
	var at []int
	for n, c := range t.columns {
		says := func(row []cell) bool { return n < len(row) && !row[n].isBlank() }
		if c.when == always || c.when == ifUseful && slices.ContainsFunc(t.rows, says) {
			at = append(at, n)
		}
	}
	return t.pick(at)
}

// pick returns a table with the columns at the given indexes.
func (t *table) pick(at []int) *table {
	some := &table{spare: t.spare}
	for _, n := range at {
		some.columns = append(some.columns, t.columns[n])
	}
	for _, row := range t.rows {
		var cells []cell
		for _, n := range at {
			if n < len(row) {
				cells = append(cells, row[n])
			} else {
				cells = append(cells, cell{})
			}
		}
		some.rows = append(some.rows, cells)
	}
	return some
}

// isBlank reports whether a cell has no useful content. Default values are dimmed and
// count as blank.
func (c cell) isBlank() bool {
	return c.text == "" || c.text == "-" || c.style == dim
}

// printTable prints a table according to the flags. An unknown column is reported when
// the command ends.
func (a *app) printTable(t *table) {
	f := a.global.table
	if a.checkColumns(t) != nil {
		return
	}
	t.reword(a.repeatFlags)
	if len(t.rows) == 0 && t.empty != "" {
		a.note("%s", t.empty)
		return
	}
	if f.quiet && len(f.columns) == 0 {
		t = t.pick([]int{t.key})
	}
	switch {
	case len(f.columns) > 0:
		if t = t.choose(f.columns); len(t.columns) == 0 {
			return // they are those of the command's other table
		}
	case !f.wide && !f.quiet:
		t = t.useful()
	}
	if f.quiet {
		for _, row := range t.rows {
			fmt.Fprintln(a.env.Stdout, plain(strings.TrimSuffix(row[0].text, currentMark)))
		}
		return
	}
	for _, line := range a.layOut(t) {
		fmt.Fprintln(a.env.Stdout, line)
	}
}

// layOut returns the lines of a table. On a terminal, unless the user wants it wide, it
// fits the table into the width, and stacks its rows if they are too wide for that.
func (a *app) layOut(t *table) []string {
	f := a.global.table
	if a.env.Terminal(a.env.Stdout) && !f.wide {
		if lines := a.withReasonsBelow(t); lines != nil {
			return withoutHeader(lines, f.noHeader)
		}
		if len(f.columns) == 0 {
			t = t.narrowed(a.width())
		}
		if t.isTooWide(a.width()) {
			return t.stack(a.paint(a.env.Stdout), a.width())
		}
		t.fold(a.width())
	}
	return withoutHeader(t.lines(a.paint(a.env.Stdout)), f.noHeader)
}

func withoutHeader(lines []string, without bool) []string {
	if without {
		return lines[1:]
	}
	return lines
}

const (
	// reasonHead is the heading of the column with sentences, the last one of its table.
	reasonHead = "REASON"
	// leastReason is the width below which a sentence is printed below its row instead.
	leastReason = 30
	// reasonIndent is how far it is indented there.
	reasonIndent = "    "
)

// withReasonsBelow lays out a table whose last column would be too narrow for its sentences:
// it prints each one below its row. It returns nil if that is not necessary, or not enough.
func (a *app) withReasonsBelow(t *table) []string {
	width, last := a.width(), len(t.columns)-1
	if last < 1 || t.columns[last].head != reasonHead || width < narrowScreen {
		return nil
	}
	wide, left := t.widths(), width
	for _, w := range wide[:last] {
		left -= w + 2
	}
	if left >= min(leastReason, wide[last]) {
		return nil
	}
	var others []int
	for n := range last {
		others = append(others, n)
	}
	rest := t.pick(others)
	if len(a.global.table.columns) == 0 {
		rest = rest.narrowed(width)
	}
	if rest.isTooWide(width) {
		return nil
	}
	groups := rest.foldRows(width)
	rest.rows = slices.Concat(groups...)
	lines := rest.lines(a.paint(a.env.Stdout))
	all, at := lines[:1:1], 1
	for n, group := range groups {
		all = append(all, lines[at:at+len(group)]...)
		at += len(group)
		if why := t.rows[n][last].text; why != "" {
			for _, line := range wrap(why, width-len(reasonIndent)) {
				all = append(all, reasonIndent+line)
			}
		}
	}
	return all
}

// width returns the width of the terminal. COLUMNS takes precedence.
func (a *app) width() int {
	if n, err := strconv.Atoi(a.env.Getenv("COLUMNS")); err == nil && n > 0 {
		return n
	}
	width, _ := a.env.Size(a.env.Stdout)
	return width
}

// fold folds a table to the width of the terminal, if there is one and the user wants it.
func (a *app) fold(t *table) {
	if a.env.Terminal(a.env.Stdout) && !a.global.table.wide {
		t.fold(a.width())
	}
}

// narrowScreen is the width below which rows are stacked rather than folded into narrow
// columns.
const narrowScreen = 60

// isTooWide reports whether a table does not fit into a width even if it is folded.
func (t *table) isTooWide(width int) bool {
	if width < narrowScreen {
		return t.leastWidth(narrowest) > width
	}
	return t.leastWidth(0) > width
}

// narrowed returns the table without the optional columns that say the same in every row,
// and then without the spare ones, as many as necessary to fit it into a width.
func (t *table) narrowed(width int) *table {
	if width < narrowScreen {
		return t
	}
	for n := 1; n < len(t.columns) && t.isTooWide(width); {
		if t.columns[n].when == always || !t.isUniform(n) {
			n++
			continue
		}
		t = t.without(n)
	}
	for _, head := range t.spare {
		if n := t.find(head); n > 0 && t.isTooWide(width) {
			t = t.without(n)
		}
	}
	return t
}

// without returns the table without the column at an index.
func (t *table) without(n int) *table {
	var at []int
	for i := range t.columns {
		if i != n {
			at = append(at, i)
		}
	}
	return t.pick(at)
}

// isUniform reports whether several rows have the same text in a column.
func (t *table) isUniform(n int) bool {
	return len(t.rows) > 1 && !slices.ContainsFunc(t.rows, func(row []cell) bool { return row[n].text != t.rows[0][n].text })
}

// leastWidth returns the minimum width of the table if its columns are folded to the
// given width, or as far as their words allow.
func (t *table) leastWidth(narrowest int) int {
	all := 2 * (len(t.columns) - 1)
	for _, w := range t.leastWidths(narrowest) {
		all += w
	}
	return all
}

// stack lays out a table for a narrow screen: each row as a list of its cells, below its
// first one.
func (t *table) stack(p paint, width int) (lines []string) {
	const indent = "  "
	for _, row := range t.rows {
		lines = append(lines, p.in(row[0].style, plain(row[0].text)))
		cells := newTable("", "")
		for n, c := range row {
			if n > 0 && !c.isBlank() {
				cells.add(text(strings.ToLower(t.columns[n].head)), c)
			}
		}
		if len(cells.rows) == 0 {
			continue
		}
		cells.fold(width - len(indent))
		for _, line := range cells.lines(p)[1:] {
			lines = append(lines, indent+line)
		}
	}
	return lines
}

// narrowest is the minimum width of a folded column, unless the table is too wide.
const narrowest = 16

// listMark separates the items of a list without spaces, which can be folded after it.
const listMark = ","

// breakLists adds spaces to the lists in a text that are wider than a column.
func breakLists(s string, width int) string {
	words := strings.Split(s, " ")
	for n, word := range words {
		if cells(word) > width {
			words[n] = strings.TrimSuffix(strings.ReplaceAll(word, listMark, listMark+" "), " ")
		}
	}
	return strings.Join(words, " ")
}

// fold wraps texts so that the table fits into a width: first those of the last column,
// then those of the widest columns. It does not break words, so that names and ids can be
// copied. A table with long names may still be too wide.
func (t *table) fold(width int) { t.rows = slices.Concat(t.foldRows(width)...) }

// foldRows returns the rows that each row becomes when it is folded.
func (t *table) foldRows(width int) [][][]cell {
	wide, least := t.widths(), t.leastWidths(narrowest)
	if t.leastWidth(narrowest) > width {
		least = t.leastWidths(0)
	}
	over := 2*(len(wide)-1) - width
	for _, w := range wide {
		over += w
	}
	for n := len(wide) - 1; over > 0 && n >= 0; n = mostToSpare(wide, least) {
		cut := max(0, min(over, wide[n]-least[n]))
		wide[n], over = wide[n]-cut, over-cut
	}
	var groups [][][]cell
	for _, row := range t.rows {
		groups = append(groups, foldRow(row, wide))
	}
	return groups
}

// wrap wraps a text to a width. It never breaks a word at a hyphen, so that commands and ids
// can be copied.
func wrap(text string, width int) []string {
	const hyphen = "\u2011" // one that does not break
	text = strings.ReplaceAll(breakLists(plain(text), width), "-", hyphen)
	return strings.Split(strings.ReplaceAll(ansi.Wordwrap(text, width, ""), hyphen, "-"), "\n")
}

// mostToSpare returns the column that can be narrowed the most, or -1.
func mostToSpare(wide, least []int) int {
	found, most := -1, 0
	for n := range wide {
		if spare := wide[n] - least[n]; spare > most {
			found, most = n, spare
		}
	}
	return found
}

// leastWidths returns the minimum width of each column: of its longest word, but not below
// narrowest.
func (t *table) leastWidths(narrowest int) []int {
	least, widest := make([]int, len(t.columns)), t.widths()
	for n, c := range t.columns {
		least[n] = max(cells(c.head), min(narrowest, widest[n]))
	}
	for _, row := range t.rows {
		for n, c := range row {
			for word := range strings.FieldsSeq(c.text) {
				for part := range strings.SplitAfterSeq(word, listMark) {
					least[n] = max(least[n], cells(part))
				}
			}
		}
	}
	return least
}

// foldRow wraps the cells of a row that are too wide into additional rows.
func foldRow(row []cell, wide []int) [][]cell {
	rows := [][]cell{make([]cell, len(row))}
	for n, c := range row {
		if cells(plain(c.text)) <= wide[n] {
			rows[0][n] = c
			continue
		}
		for i, part := range wrap(c.text, wide[n]) {
			if i == len(rows) {
				rows = append(rows, make([]cell, len(row)))
			}
			rows[i][n] = cell{part, c.style}
		}
	}
	return rows
}
