package logfile_test

import (
	"bytes"
	"testing"

	"mariposa/driver/logfile"
)

func TestLineEndsOfTerminals(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	l := logfile.LineEnds{To: &out}
	for _, part := range []string{"a\r\nb\r", "\nc\rd", "\r", "\r\n", "end\r"} {
		if n, err := l.Write([]byte(part)); n != len(part) || err != nil {
			t.Errorf("%q: %d, %v", part, n, err)
		}
	}
	l.Flush()
	if got := out.String(); got != "a\nb\nc\rd\r\nend\r" {
		t.Errorf("%q", got)
	}
}
