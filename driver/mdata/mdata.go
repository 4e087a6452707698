// Package mdata speaks the metadata protocol, version 2, that guests of Triton know: their tools
// mdata-get, mdata-put, mdata-list and mdata-delete read and write the values of an instance over a
// serial port or a socket. The package has both sides. It does not know where values are kept.
package mdata

import (
	"bufio"
	"encoding/base64"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"slices"
	"strconv"
	"strings"
)

// The words of the protocol.
const (
	negotiate   = "NEGOTIATE V2"
	negotiated  = "V2_OK"
	commandGet  = "GET"
	commandPut  = "PUT"
	commandDel  = "DELETE"
	commandKeys = "KEYS"
	success     = "SUCCESS"
	notFound    = "NOTFOUND"
	invalid     = "invalid command" // the answer of version 1 to what it does not know
)

// MaxLine bounds a line: what a guest sends is kept in memory.
const MaxLine = 1 << 20

// ErrNotFound means that there is no such key.
var ErrNotFound = errors.New("no such key")

// Values are the values of an instance. Keys and Get return what others have set too.
type Values interface {
	Keys() ([]string, error)
	// Get returns ErrNotFound for a key that does not exist.
	Get(key string) (string, error)
	Put(key, value string) error
	// Delete of a key that does not exist is not an error.
	Delete(key string) error
}

// frame is a message of the protocol, without its length and its checksum.
type frame struct {
	id      string // of a request; its response has the same
	word    string
	payload string
	has     bool // there is a payload
}

// encode returns the line of a frame.
func (f frame) encode() string {
	body := f.id + " " + f.word
	if f.has {
		body += " " + base64.StdEncoding.EncodeToString([]byte(f.payload))
	}
	return fmt.Sprintf("V2 %d %08x %s\n", len(body), crc32.ChecksumIEEE([]byte(body)), body)
}

// decode reads a line.
func decode(line string) (f frame, err error) {
	parts := strings.SplitN(line, " ", 4)
	if len(parts) != 4 || parts[0] != "V2" {
		return f, errors.New("it is no frame of version 2")
	}
	body := parts[3]
	length, err := strconv.Atoi(parts[1])
	if err != nil || length != len(body) {
		return f, errors.New("its length is wrong")
	}
	sum, err := strconv.ParseUint(parts[2], 16, 32)
	if err != nil || uint32(sum) != crc32.ChecksumIEEE([]byte(body)) {
		return f, errors.New("its checksum is wrong")
	}
	words := strings.SplitN(body, " ", 3)
	if len(words) < 2 || words[0] == "" || words[1] == "" {
		return f, errors.New("it has no command")
	}
	f.id, f.word = words[0], words[1]
	if len(words) == 3 {
		b, err := base64.StdEncoding.DecodeString(words[2])
		if err != nil {
			return f, errors.New("its payload is no base64")
		}
		f.payload, f.has = string(b), true
	}
	return f, nil
}

// Serve answers the requests of one guest until the connection ends. Lines that are damaged or too
// long get no answer: the guest repeats its request.
func Serve(conn io.ReadWriter, values Values) error {
	lines := bufio.NewReaderSize(conn, 4096)
	for {
		line, err := readLine(lines)
		if err != nil {
			return ignoreEnd(err)
		}
		answer := serveLine(strings.TrimRight(line, "\r"), values)
		if answer == "" {
			continue
		}
		if _, err := io.WriteString(conn, answer); err != nil {
			return err
		}
	}
}

// readLine returns the next line that is not too long. Longer ones are skipped: nobody but the
// guest can repair what it sends, and it may be restarted in the middle of a line.
func readLine(r *bufio.Reader) (string, error) {
	var line []byte
	tooLong := false
	for {
		part, err := r.ReadSlice('\n')
		if tooLong = tooLong || len(line)+len(part) > MaxLine; tooLong {
			line = nil
		} else {
			line = append(line, part...)
		}
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
		case err != nil:
			return "", err
		case tooLong:
			tooLong = false
		default:
			return string(line[:len(line)-1]), nil
		}
	}
}

func ignoreEnd(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

func serveLine(line string, values Values) string {
	switch {
	case line == "": // guests send empty lines to find out whether someone answers
		return invalid + "\n"
	case line == negotiate:
		return negotiated + "\n"
	case !strings.HasPrefix(line, "V2 "):
		return invalid + "\n"
	}
	request, err := decode(line)
	if err != nil {
		return ""
	}
	word, payload, has := serve(request, values)
	return frame{id: request.id, word: word, payload: payload, has: has}.encode()
}

// serve carries out a request.
func serve(request frame, values Values) (word, payload string, has bool) {
	fail := func(err error) (string, string, bool) {
		if errors.Is(err, ErrNotFound) {
			return notFound, "", false
		}
		return "FAILURE", err.Error(), true
	}
	switch request.word {
	case commandGet:
		value, err := values.Get(request.payload)
		if err != nil {
			return fail(err)
		}
		return success, value, true
	case commandKeys:
		keys, err := values.Keys()
		if err != nil {
			return fail(err)
		}
		slices.Sort(keys)
		return success, strings.Join(keys, "\n"), true
	case commandDel:
		if err := values.Delete(request.payload); err != nil {
			return fail(err)
		}
		return success, "", false
	case commandPut:
		key, value, err := splitPut(request.payload)
		if err == nil {
			err = values.Put(key, value)
		}
		if err != nil {
			return fail(err)
		}
		return success, "", false
	}
	return "FAILURE", "unknown command " + request.word, true
}

// splitPut reads the payload of PUT: key and value, each in base64.
func splitPut(payload string) (key, value string, err error) {
	first, second, found := strings.Cut(payload, " ")
	k, err1 := base64.StdEncoding.DecodeString(first)
	v, err2 := base64.StdEncoding.DecodeString(second)
	if !found || err1 != nil || err2 != nil {
		return "", "", errors.New("PUT needs a key and a value in base64")
	}
	return string(k), string(v), nil
}
