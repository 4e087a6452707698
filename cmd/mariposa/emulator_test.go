package main_test

import (
	"slices"
	"strings"

	"github.com/charmbracelet/x/ansi"
)

// screen emulates what a terminal shows. A live view draws only changes, so the output
// alone does not say what a person sees. Colors and wide characters are not emulated.
type screen struct {
	parser      *ansi.Parser
	cells       [][]rune
	row, col    int
	top, bottom int  // the scroll region, inclusive
	wraps       bool // the cursor is behind the last column
	inserts     bool
	last        rune
}

func newScreen(rows, cols int) *screen {
	s := &screen{parser: ansi.NewParser(), cells: make([][]rune, rows), bottom: rows - 1}
	for i := range s.cells {
		s.cells[i] = blank(cols)
	}
	s.parser.SetHandler(ansi.Handler{Print: s.print, Execute: s.control, HandleCsi: s.sequence, HandleEsc: func(cmd ansi.Cmd) {
		if cmd.Final() == 'M' {
			s.up()
		}
	}})
	return s
}

func blank(n int) []rune { return slices.Repeat([]rune{' '}, n) }

// Write processes output. A sequence may be split between calls.
func (s *screen) Write(b []byte) (int, error) {
	for _, c := range b {
		s.parser.Advance(c)
	}
	return len(b), nil
}

// lines returns the text of each row.
func (s *screen) lines() []string {
	all := make([]string, len(s.cells))
	for i, row := range s.cells {
		all[i] = strings.TrimRight(string(row), " ")
	}
	return all
}

func (s *screen) print(r rune) {
	if s.wraps {
		s.wraps, s.col = false, 0
		s.down()
	}
	line := s.cells[s.row]
	if s.inserts {
		copy(line[s.col+1:], line[s.col:])
	}
	line[s.col], s.last = r, r
	if s.col == len(line)-1 {
		s.wraps = true
	} else {
		s.col++
	}
}

func (s *screen) control(b byte) {
	switch b {
	case '\n':
		s.down()
	case '\r':
		s.move(s.row, 0)
	case '\b':
		s.move(s.row, s.col-1)
	case '\t':
		s.move(s.row, s.col/8*8+8)
	}
}

// move moves the cursor, at most to the edges.
func (s *screen) move(row, col int) {
	s.row, s.col, s.wraps = min(max(row, 0), len(s.cells)-1), min(max(col, 0), len(s.cells[0])-1), false
}

func (s *screen) down() {
	if s.row == s.bottom {
		s.scroll(s.top, 1)
	} else {
		s.move(s.row+1, s.col)
	}
}

func (s *screen) up() {
	if s.row == s.top {
		s.scroll(s.top, -1)
	} else {
		s.move(s.row-1, s.col)
	}
}

// scroll moves the rows from a row to the end of the scroll region up by n, or down.
func (s *screen) scroll(from, n int) {
	for range max(n, -n) {
		if n > 0 {
			s.cells = slices.Insert(slices.Delete(s.cells, from, from+1), s.bottom, blank(len(s.cells[from])))
		} else {
			s.cells = slices.Insert(slices.Delete(s.cells, s.bottom, s.bottom+1), from, blank(len(s.cells[from])))
		}
	}
}

func (s *screen) sequence(cmd ansi.Cmd, params ansi.Params) {
	n, _, _ := params.Param(0, 1)
	mode, _, _ := params.Param(0, 0)
	if cmd.Prefix() != 0 {
		if mode == 1049 { // another screen, or the first one again
			s.erase(0, len(s.cells))
		}
		return
	}
	line := s.cells[s.row]
	switch cmd.Final() {
	case 'A':
		s.move(s.row-n, s.col)
	case 'B':
		s.move(s.row+n, s.col)
	case 'C', 'a':
		s.move(s.row, s.col+n)
	case 'D':
		s.move(s.row, s.col-n)
	case 'G', '`':
		s.move(s.row, n-1)
	case 'd':
		s.move(n-1, s.col)
	case 'H', 'f':
		col, _, _ := params.Param(1, 1)
		s.move(n-1, col-1)
	case 'I':
		s.move(s.row, (s.col/8+n)*8)
	case 'Z':
		s.move(s.row, ((s.col+7)/8-n)*8)
	case 'J':
		s.eraseRows(mode)
	case 'K':
		s.eraseLine(line, mode)
	case 'X':
		copy(line[s.col:], blank(min(n, len(line)-s.col)))
	case 'P':
		copy(line[s.col:], append(slices.Clone(line[min(s.col+n, len(line)):]), blank(n)...))
	case '@':
		copy(line[s.col:], append(blank(n), slices.Clone(line[s.col:])...))
	case 'L':
		s.scroll(s.row, -n)
	case 'M':
		s.scroll(s.row, n)
	case 'S':
		s.scroll(s.top, n)
	case 'T':
		s.scroll(s.top, -n)
	case 'b':
		for range n {
			s.print(s.last)
		}
	case 'r':
		bottom, _, _ := params.Param(1, len(s.cells))
		s.top, s.bottom = n-1, bottom-1
		s.move(0, 0)
	case 'h', 'l':
		if mode == 4 {
			s.inserts = cmd.Final() == 'h'
		}
	}
}

func (s *screen) erase(from, to int) {
	for i := from; i < to; i++ {
		s.cells[i] = blank(len(s.cells[i]))
	}
}

func (s *screen) eraseRows(mode int) {
	switch mode {
	case 0:
		s.eraseLine(s.cells[s.row], 0)
		s.erase(s.row+1, len(s.cells))
	case 1:
		s.eraseLine(s.cells[s.row], 1)
		s.erase(0, s.row)
	default:
		s.erase(0, len(s.cells))
	}
}

func (s *screen) eraseLine(line []rune, mode int) {
	from, to := s.col, len(line)
	switch mode {
	case 1:
		from, to = 0, s.col+1
	case 2:
		from = 0
	}
	copy(line[from:to], blank(to-from))
}
