package health

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/textproto"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"mariposa"
)

// Inconclusive is the error of a check about which nothing can be said, for a cause on the
// side of the checker.
type Inconclusive struct{ Reason string }

func (e *Inconclusive) Error() string { return e.Reason }

// silence is the error of a check that got no answer: neither a reply nor a refusal.
type silence struct{ text string }

func (e *silence) Error() string { return e.text }

func isSilence(err error) bool {
	var s *silence
	return errors.As(err, &s)
}

// maxBody is how much of a body is read.
const maxBody = 64 << 10

// maxHead is how long the head of an answer may be.
const maxHead = 64 << 10

// ProbeNetwork runs a check of type http, https, tcp or containerpilot.
func ProbeNetwork(ctx context.Context, at Target, c *mariposa.HealthCheck) error {
	address, err := at.addressOf(c)
	if err != nil {
		return err
	}
	conn, err := dial(ctx, address, c)
	if err != nil {
		return err
	}
	defer conn.Close()
	if deadline, ok := ctx.Deadline(); ok {
		_ = conn.SetDeadline(deadline) // fails only on a closed connection
	}
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })() // the check was aborted
	switch c.Type {
	case mariposa.CheckTCP:
		return nil
	case mariposa.CheckPilot:
		return explain(probePilot(conn, address), c)
	case mariposa.CheckHTTPS:
		secure := tls.Client(conn, &tls.Config{
			ServerName: hostOf(address), MinVersion: tls.VersionTLS12,
			InsecureSkipVerify: c.Insecure, //nolint:gosec // the manifest says verify: false
		})
		if err := secure.HandshakeContext(ctx); err != nil {
			return explain(fmt.Errorf("has no valid TLS: %w", err), c)
		}
		return explain(probeHTTP(ctx, secure, address, at.project(), c), c)
	}
	return explain(probeHTTP(ctx, conn, address, at.project(), c), c)
}

// addressOf returns the address and port that a check is about.
func (at Target) addressOf(c *mariposa.HealthCheck) (string, error) {
	address := at.Address
	if c.Network != "" {
		address = at.Networks[c.Network]
	}
	if address == "" {
		return "", &Inconclusive{Reason: "the instance has no address" + inNetwork(c.Network)}
	}
	if at := at.Ports[c.Port]; at != "" && c.Network == "" {
		return at, nil
	}
	return net.JoinHostPort(address, strconv.Itoa(c.Port)), nil
}

func inNetwork(name string) string {
	if name == "" {
		return ""
	}
	return " in network " + name
}

func hostOf(address string) string {
	host, _, _ := net.SplitHostPort(address)
	return host
}

var dialer = net.Dialer{KeepAlive: -1}

func dial(ctx context.Context, address string, c *mariposa.HealthCheck) (net.Conn, error) {
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, explain(err, c)
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // thousands of checks would leave thousands of ports waiting
	}
	return conn, nil
}

// localErrors are errors for which the instance is not to blame.
var localErrors = map[syscall.Errno]string{
	syscall.EMFILE:        "the agent has too many open files",
	syscall.ENFILE:        "the machine has too many open files",
	syscall.ENOBUFS:       "the machine has no buffers left",
	syscall.ENOMEM:        "the machine has no memory left",
	syscall.EADDRNOTAVAIL: "the machine has no free port left",
	syscall.EAGAIN:        "the machine has no resources left",
	syscall.ENETDOWN:      "the network of the machine is down",
}

// explain turns an error of a connection into the rest of a sentence about the check.
func explain(err error, c *mariposa.HealthCheck) error {
	if err == nil {
		return nil
	}
	var unclear *Inconclusive
	if errors.As(err, &unclear) {
		return err
	}
	var local syscall.Errno
	if errors.As(err, &local) {
		if why, is := localErrors[local]; is {
			return &Inconclusive{Reason: why}
		}
	}
	var timeout net.Error
	switch {
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return &silence{"did not answer within " + seconds(c.Timeout)}
	case errors.Is(err, context.Canceled):
		return &Inconclusive{Reason: "the check was canceled"}
	case errors.Is(err, syscall.ECONNREFUSED):
		return errors.New("refused the connection")
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return errors.New("closed the connection")
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		return &silence{"cannot be reached"}
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return errors.New("closed the connection without a complete answer")
	}
	return errors.New(Shorten(err.Error()))
}

// Shorten makes a text from outside fit for a sentence: one line, bounded, without control
// characters.
func Shorten(text string) string {
	const most = 200
	text = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r == '\u2028' || r == '\u2029' || r >= 0x80 && r < 0xa0 || r >= 0x202a && r <= 0x202e || r >= 0x2066 && r <= 0x2069 {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(text, "?"))
	text = strings.TrimSpace(text)
	if len(text) <= most {
		return text
	}
	cut := text[:most]
	for len(cut) > 0 && cut[len(cut)-1]&0xc0 == 0x80 {
		cut = cut[:len(cut)-1]
	}
	return strings.ToValidUTF8(cut, "") + "…"
}

var readers = sync.Pool{New: func() any { return bufio.NewReaderSize(nil, 4<<10) }}

// request sends a GET request over a connection of its own and reads the answer. Unlike
// net/http's client it needs no goroutines and keeps nothing, which halves the cost of a
// check.
func request(conn net.Conn, address, path string, use func(*http.Response) error) error {
	u, err := url.ParseRequestURI(path)
	if err != nil {
		return fmt.Errorf("cannot be requested: the path is not valid: %w", err)
	}
	head := "GET " + u.RequestURI() + " HTTP/1.1\r\nHost: " + address + "\r\nUser-Agent: mariposa-health\r\nAccept: */*\r\nConnection: close\r\n\r\n"
	if _, err := io.WriteString(conn, head); err != nil {
		return err
	}
	r := readers.Get().(*bufio.Reader)
	from := &answer{r: conn, left: maxHead + maxBody}
	r.Reset(from)
	defer func() {
		r.Reset(nil)
		readers.Put(r)
	}()
	resp, err := readResponse(r)
	if err != nil {
		return from.explain(err)
	}
	defer resp.Body.Close()
	return use(resp)
}

// readResponse reads the head of an answer. Answers that announce another one, such as 103
// Early Hints, are skipped; an answer is bounded, so there is an end to them.
func readResponse(r *bufio.Reader) (*http.Response, error) {
	for {
		resp, err := http.ReadResponse(r, nil)
		if err != nil || resp.StatusCode >= 200 || resp.StatusCode == http.StatusSwitchingProtocols {
			return resp, err
		}
	}
}

// answer reads an answer up to a limit and remembers why it cannot read on.
type answer struct {
	r    io.Reader
	left int
	err  error
}

var errTooLong = errors.New("answered with headers of more than 64 KiB")

func (a *answer) Read(p []byte) (int, error) {
	if a.left <= 0 {
		a.err = errTooLong
		return 0, io.EOF
	}
	n, err := a.r.Read(p[:min(len(p), a.left)])
	a.left -= n
	if err != nil {
		a.err = err
	}
	return n, err
}

// explain returns why the head of an answer could not be read.
func (a *answer) explain(err error) error {
	var malformed textproto.ProtocolError
	var network net.Error
	switch {
	case errors.Is(a.err, errTooLong):
		return a.err
	case errors.As(a.err, &network) && network.Timeout(): // half a line looks malformed
		return a.err
	case errors.As(err, &malformed), strings.Contains(err.Error(), "malformed HTTP"):
		return errors.New("did not answer in HTTP")
	case errors.As(err, &network), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return err
	}
	return fmt.Errorf("did not answer in valid HTTP: %w", err)
}

// probeHTTP makes a request and compares the answer with what is expected.
func probeHTTP(ctx context.Context, conn net.Conn, address, project string, c *mariposa.HealthCheck) error {
	return request(conn, address, c.Path, func(resp *http.Response) error {
		if !isExpected(resp.StatusCode, c.ExpectStatus) {
			return fmt.Errorf("answered %d", resp.StatusCode)
		}
		for _, h := range c.ExpectHeaders {
			if got := resp.Header.Values(h.Name); len(got) == 0 {
				return fmt.Errorf("answered without the header %s", h.Name)
			} else if !slices.Contains(got, h.Value) {
				return fmt.Errorf("answered with %s: %s instead of %s", h.Name, Shorten(got[0]), Shorten(h.Value))
			}
		}
		if c.ExpectBody == "" {
			return nil
		}
		body, err := readBody(resp)
		if err != nil {
			return err
		}
		matches, err := matchesBody(ctx, project, c.ExpectBody, body)
		if err != nil {
			return err
		}
		if !matches {
			return fmt.Errorf("answered with a body that does not match %q", Shorten(c.ExpectBody))
		}
		return nil
	})
}

// readBody reads the beginning of a body.
func readBody(resp *http.Response) ([]byte, error) {
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxBody))
	var network net.Error
	if err == nil || errors.As(err, &network) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return body, err
	}
	return nil, fmt.Errorf("did not answer in valid HTTP: %w", err)
}

func isExpected(code int, ranges []mariposa.StatusRange) bool {
	for _, r := range ranges {
		if code >= r.From && code <= r.To {
			return true
		}
	}
	return false
}

// patterns are the compiled regular expressions of checks.
var patterns = struct {
	sync.Mutex
	known map[string]*regexp.Regexp
}{known: map[string]*regexp.Regexp{}}

// maxPatterns bounds how many are kept: those of old manifests are not needed any more.
const maxPatterns = 1000

// matchesBody reports whether a body contains a text, or matches a regular expression
// between slashes.
func matchesBody(ctx context.Context, project, expect string, body []byte) (matches bool, err error) {
	expr, is := mariposa.BodyPattern(expect)
	if !is {
		return bytes.Contains(body, []byte(expect)), nil
	}
	re := compile(expr)
	if re == nil { // the manifest was checked
		return false, nil
	}
	err = matching.spend(ctx, project, func() { matches = re.Match(body) })
	return matches, err
}

// compile returns a regular expression; nil if it is none.
func compile(expr string) *regexp.Regexp {
	patterns.Lock()
	defer patterns.Unlock()
	re := patterns.known[expr]
	if re == nil {
		compiled, err := regexp.Compile(expr)
		if err != nil {
			return nil
		}
		if len(patterns.known) == maxPatterns {
			clear(patterns.known)
		}
		re = compiled
		patterns.known[expr] = re
	}
	return re
}
