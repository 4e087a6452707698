package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// look is the style of a character.
type look struct {
	color     string // a CSS color; empty: the default text color
	bold, dim bool
}

// cell is one character on the screen.
type cell struct {
	char rune
	look look
}

// line is one line of the screen.
type line []cell

// prompt returns the line with the typed command.
func prompt(command string) line {
	l := line{{'$', look{color: green}}, {' ', look{}}}
	for _, c := range command {
		l = append(l, cell{c, look{bold: true}})
	}
	return l
}

// perform runs a command in a terminal and returns the lines on its screen. A failing
// command is not an error: the picture may show one.
func perform(ctx context.Context, folder string, env []string, command string) ([]line, error) {
	ours, theirs, err := openTerminal()
	if err != nil {
		return nil, err
	}
	defer ours.Close()
	cmd := exec.CommandContext(ctx, "/bin/sh", "-c", command)
	cmd.Dir, cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = folder, env, theirs, theirs, theirs
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	err = cmd.Start()
	_ = theirs.Close()
	if err != nil {
		return nil, err
	}
	out, err := io.ReadAll(ours)
	var s screen
	s.write(string(out))
	if err != nil && !errors.Is(err, syscall.EIO) { // the terminal was closed
		return s.lines, err
	}
	var failed *exec.ExitError
	if err := cmd.Wait(); err != nil && (!errors.As(err, &failed) || ctx.Err() != nil) {
		return s.lines, errors.Join(err, ctx.Err())
	}
	return s.lines, nil
}

// plain returns lines without colors.
func plain(lines []line) string {
	var b strings.Builder
	for _, l := range lines {
		for _, c := range l {
			b.WriteRune(c.char)
		}
		b.WriteByte('\n')
	}
	return b.String()
}

func openTerminal() (ours, theirs *os.File, err error) {
	ours, err = os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		return nil, nil, err
	}
	fd := int(ours.Fd())
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		err = unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 40, Col: width})
	}
	if err == nil {
		theirs, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|syscall.O_NOCTTY, 0)
	}
	if err != nil {
		return nil, nil, errors.Join(err, ours.Close())
	}
	return ours, theirs, nil
}

// screen is a minimal terminal emulator. It supports the sequences that our commands use:
// colors, cursor up and erase line.
type screen struct {
	lines    []line
	row, col int
	look     look
}

func (s *screen) write(text string) {
	for text != "" {
		if rest, ok := strings.CutPrefix(text, "\x1b["); ok {
			end := strings.IndexFunc(rest, func(r rune) bool { return r >= '@' && r <= '~' })
			if end < 0 {
				return
			}
			s.control(rest[end], rest[:end])
			text = rest[end+1:]
			continue
		}
		r, n := utf8.DecodeRuneInString(text)
		text = text[n:]
		switch r {
		case '\n':
			s.row++
		case '\r':
			s.col = 0
		case '\x1b': // another kind of sequence; the next character ends it
			if text != "" {
				text = text[1:]
			}
		default:
			if r >= ' ' {
				s.put(r)
			}
		}
	}
	for n := len(s.lines); n > 0 && len(s.lines[n-1]) == 0; n-- {
		s.lines = s.lines[:n-1]
	}
}

func (s *screen) put(r rune) {
	for len(s.lines) <= s.row {
		s.lines = append(s.lines, nil)
	}
	if s.col >= width {
		s.wrap(r)
		if r == ' ' {
			return
		}
	}
	l := s.lines[s.row]
	for len(l) <= s.col {
		l = append(l, cell{char: ' '})
	}
	l[s.col] = cell{r, s.look}
	s.lines[s.row] = l
	s.col++
}

// wrap continues on the next line before a character is put. Unlike a terminal, it moves the
// word that does not fit as a whole, so that the picture can be read.
func (s *screen) wrap(next rune) {
	l := s.lines[s.row]
	start := len(l)
	for next != ' ' && start > 0 && l[start-1].char != ' ' {
		start--
	}
	if start == 0 { // one word fills the line
		start = len(l)
	}
	word := slices.Clone(l[start:])
	s.lines[s.row] = l[:start]
	s.row, s.col = s.row+1, len(word)
	if s.row == len(s.lines) {
		s.lines = append(s.lines, nil)
	}
	s.lines[s.row] = word
}

// control executes a control sequence.
func (s *screen) control(what byte, arguments string) {
	n, err := strconv.Atoi(arguments)
	if err != nil {
		n = 0
	}
	switch what {
	case 'A':
		s.row = max(0, s.row-max(1, n))
	case 'B':
		s.row += max(1, n)
	case 'G':
		s.col = max(1, n) - 1
	case 'K':
		if s.row < len(s.lines) && n != 1 {
			s.lines[s.row] = s.lines[s.row][:min(s.col, len(s.lines[s.row]))]
			if n == 2 {
				s.lines[s.row] = nil
			}
		}
	case 'J':
		if s.row < len(s.lines) && n == 0 {
			s.lines[s.row] = s.lines[s.row][:min(s.col, len(s.lines[s.row]))]
			s.lines = s.lines[:s.row+1]
		}
	case 'm':
		for code := range strings.SplitSeq(arguments, ";") {
			s.look = s.look.with(code)
		}
	}
}

const green = "#7ee787"

var colors = map[string]string{
	"30": "#6e7681", "31": "#ff7b72", "32": green, "33": "#e3b341", "34": "#79c0ff", "35": "#d2a8ff", "36": "#76e3ea", "37": "#c9d1d9",
	"90": "#8b949e", "91": "#ff7b72", "92": green, "93": "#e3b341", "94": "#79c0ff", "95": "#d2a8ff", "96": "#76e3ea", "97": "#ffffff",
}

// with returns the look after an SGR code (color or weight).
func (l look) with(code string) look {
	switch code {
	case "", "0":
		return look{}
	case "1":
		l.bold = true
	case "2":
		l.dim = true
	case "22":
		l.bold, l.dim = false, false
	case "39":
		l.color = ""
	default:
		if c := colors[code]; c != "" {
			l.color = c
		}
	}
	return l
}
