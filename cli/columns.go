package cli

import (
	"fmt"
	"slices"
	"strings"

	"github.com/charmbracelet/x/ansi"
	"github.com/spf13/pflag"
)

// tableFlags say how tables are printed.
type tableFlags struct {
	quiet, noHeader, wide bool
	columns               []string
}

func (f *tableFlags) add(to *pflag.FlagSet) {
	to.BoolVarP(&f.quiet, "quiet", "q", false, "of a table, print only the first column: names or ids")
	to.BoolVar(&f.noHeader, "no-header", false, "print tables without their heading")
	to.StringSliceVar(&f.columns, "columns", nil, "print only these columns of a table, like name,status")
	to.BoolVar(&f.wide, "wide", false, "do not fold tables to the width of the terminal")
}

// choose returns a table with the chosen columns alone.
func (t *table) choose(columns []string) (*table, error) {
	var at []int
	for _, name := range columns {
		n := slices.IndexFunc(t.head, func(h string) bool { return strings.EqualFold(h, strings.TrimSpace(name)) })
		if n < 0 {
			return nil, Usage(fmt.Errorf("there is no column %q; there are %s", name, strings.ToLower(strings.Join(t.head, ", "))))
		}
		at = append(at, n)
	}
	some := &table{}
	for _, n := range at {
		some.head = append(some.head, t.head[n])
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
	return some, nil
}

// printTable prints a table as the user wants it. A column that does not exist is
// reported when the command ends.
func (a *app) printTable(t *table) {
	f := a.global.table
	if len(f.columns) > 0 {
		some, err := t.choose(f.columns)
		if err != nil {
			a.tableError = err
			return
		}
		t = some
	}
	if f.quiet {
		for _, row := range t.rows {
			fmt.Fprintln(a.env.Stdout, plain(strings.TrimSuffix(row[0].text, currentMark)))
		}
		return
	}
	p := a.paint(a.env.Stdout)
	if a.env.Terminal(a.env.Stdout) && !f.wide {
		width, _ := a.env.Size(a.env.Stdout)
		t.fold(width)
	}
	lines := t.lines(p)
	if f.noHeader {
		lines = lines[1:]
	}
	for _, line := range lines {
		fmt.Fprintln(a.env.Stdout, line)
	}
}

// narrowest is the least width that a folded column gets; where there is less room, it
// is not folded.
const narrowest = 20

// fold breaks texts of the last column that do not fit into a width: they go on in rows
// of their own.
func (t *table) fold(width int) {
	last, start := len(t.head)-1, 0
	for n := range last {
		widest := cells(t.head[n])
		for _, row := range t.rows {
			if n < len(row) {
				widest = max(widest, cells(plain(row[n].text)))
			}
		}
		start += widest + 2
	}
	room := width - start
	if room < narrowest {
		return
	}
	var rows [][]cell
	for _, row := range t.rows {
		if len(row) <= last || cells(row[last].text) <= room {
			rows = append(rows, row)
			continue
		}
		for n, part := range strings.Split(ansi.Wrap(plain(row[last].text), room, ""), "\n") {
			next := make([]cell, len(row))
			if n == 0 {
				next = slices.Clone(row)
			}
			next[last] = cell{part, row[last].style}
			rows = append(rows, next)
		}
	}
	t.rows = rows
}
