package main

import (
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"
)

func TestAScreenShowsWhatATerminalWould(t *testing.T) {
	for name, c := range map[string]struct{ written, shown string }{
		"lines":           {"one\r\ntwo\r\n", "one\ntwo"},
		"a line anew":     {"10 %\r20 %\r\ndone\r\n", "20 %\ndone"},
		"erased":          {"waiting\r\x1b[Kdone\r\n", "done"},
		"lines rewritten": {"a 1\r\nb 1\r\n\x1b[2A\x1b[2Ka 2\r\n\x1b[2Kb 2\r\n", "a 2\nb 2"},
		"the rest erased": {"one\r\ntwo\r\nthree\r\n\x1b[2A\x1b[J", "one"},
		"colors":          {"\x1b[1;31mbad\x1b[0m word", "bad word"},
		"a long line":     {strings.Repeat("x", width-4) + " a word\r\nend\r\n", strings.Repeat("x", width-4) + " a \nword\nend"},
		"a full line":     {strings.Repeat("x", width-4) + " one two\r\nend\r\n", strings.Repeat("x", width-4) + " one\ntwo\nend"},
		"a very long one": {strings.Repeat("x", width+1) + "\r\n", strings.Repeat("x", width) + "\nx"},
	} {
		t.Run(name, func(t *testing.T) {
			var s screen
			s.write(c.written)
			if got := strings.TrimSuffix(plain(s.lines), "\n"); got != c.shown {
				t.Errorf("it shows %q, want %q", got, c.shown)
			}
		})
	}
}

func TestAPictureIsWellFormed(t *testing.T) {
	var s screen
	s.write("\x1b[32m<ok> & \"done\"\x1b[0m\r\n\r\nweb 3/3\r\n")
	svg := draw(append([]line{prompt("mariposa ps")}, s.lines...))
	d := xml.NewDecoder(strings.NewReader(svg))
	var text strings.Builder
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("%v in\n%s", err, svg)
		}
		if c, ok := token.(xml.CharData); ok {
			text.Write(c)
		}
	}
	for _, want := range []string{"mariposa ps", `<ok> & "done"`, "web 3/3"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("%q is missing in\n%s", want, svg)
		}
	}
}
