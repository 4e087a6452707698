package backup

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"strconv"
	"strings"

	"github.com/klauspost/compress/zstd"

	"mariposa/store"
	"mariposa/store/internal/codec"
)

var _ store.DumpSource = (*Reader)(nil)

// Reader reads a backup. Close it to release its memory.
type Reader struct {
	from    *bufio.Reader
	sum     hash.Hash
	zstd    *zstd.Decoder
	header  Header
	size    int64 // bytes read
	packed  bytes.Buffer
	rest    []byte // items of the current block that were not returned yet
	found   Summary
	summary *Summary // once the end was read
}

// NewReader reads the header of a backup. It refuses what is no backup, and a backup of a
// newer release.
func NewReader(from io.Reader) (*Reader, error) {
	d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(maxBlock))
	if err != nil {
		return nil, err
	}
	r := &Reader{from: bufio.NewReaderSize(from, 64<<10), sum: sha256.New(), zstd: d}
	if err := r.readHeader(); err != nil {
		d.Close()
		return nil, err
	}
	return r, nil
}

// Close releases the memory of the reader.
func (r *Reader) Close() { r.zstd.Close() }

func (r *Reader) readHeader() error {
	line, err := r.readLine()
	if err != nil {
		return err
	}
	words := strings.Fields(line)
	if len(words) != 3 || words[0] != magic {
		return errors.New("this is not a backup of Mariposa")
	}
	if format, err := strconv.Atoi(words[1]); err != nil || format < 1 {
		return damaged("its first line is wrong")
	} else if format > Format {
		return fmt.Errorf("the backup was made by release %s, which is newer than this one (format %d; this release reads up to %d): restore it with that release", words[2], format, Format)
	}
	kind, content, err := r.block()
	if err != nil {
		return err
	}
	if kind == blockFailed {
		return failed(content)
	}
	if kind != blockHeader || json.Unmarshal(content, &r.header) != nil {
		return damaged("it has no header")
	}
	switch h := &r.header; {
	case h.Schema > store.Schema:
		return fmt.Errorf("the backup was made by release %s, which is newer than this one (schema %d; this release supports up to %d): restore it with that release", h.Release, h.Schema, store.Schema)
	case h.Schema < 1 || h.Cluster == "" || h.Revision < 0 || h.Trimmed < 0 || h.Trimmed > h.Revision:
		return damaged("its header is wrong")
	}
	return nil
}

func (r *Reader) readLine() (string, error) {
	for n := 1; n <= maxLine; n++ {
		head, err := r.from.Peek(n)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return "", cut(err)
		}
		if head[n-1] == '\n' {
			r.sum.Write(head)
			r.size += int64(n)
			line := string(head[:n-1])
			_, err := r.from.Discard(n)
			return line, err
		}
	}
	return "", errors.New("this is not a backup of Mariposa")
}

// Header describes the backup. Nothing in it is certain before the end was read.
func (r *Reader) Header() Header { return r.header }

// Head describes the dump.
func (r *Reader) Head() store.DumpHead {
	h := &r.header
	return store.DumpHead{
		Identity: store.Identity{Cluster: h.Cluster, Incarnation: h.Incarnation}, Schema: h.Schema, Revision: h.Revision, Trimmed: h.Trimmed,
		Audit: store.AuditMark{Last: h.AuditLast, Lag: h.AuditLag}, Time: h.Time,
	}
}

// Summary returns what the backup contains, once all of it was read; nil before.
func (r *Reader) Summary() *Summary { return r.summary }

// Size returns how many bytes were read.
func (r *Reader) Size() int64 { return r.size }

// Next returns the next item, and io.EOF after the last one of a complete backup.
func (r *Reader) Next() (*store.DumpItem, error) {
	for len(r.rest) == 0 {
		if r.summary != nil {
			return nil, io.EOF
		}
		if err := r.next(); err != nil {
			return nil, err
		}
	}
	it, rest, err := readItem(r.rest)
	if err != nil {
		return nil, err
	}
	r.rest = rest
	r.found.count(it)
	return it, nil
}

// next reads a block of items, or the end.
func (r *Reader) next() error {
	sum := r.sum.Sum(nil)
	kind, content, err := r.block()
	switch {
	case err != nil:
		return err
	case kind == blockFailed:
		return failed(content)
	case kind == blockEnd:
		return r.end(sum, content)
	case kind != blockItems:
		return damaged("it has an unknown part")
	}
	if r.rest, err = r.zstd.DecodeAll(content, nil); err != nil { // items keep parts of it
		return damaged("a part cannot be decompressed")
	}
	return nil
}

// end checks the whole file.
func (r *Reader) end(sum, content []byte) error {
	var end Summary
	if json.Unmarshal(content, &end) != nil {
		return damaged("its end is wrong")
	}
	r.found.SHA256 = hex.EncodeToString(sum)
	if end != r.found {
		return damaged("its checksum is wrong")
	}
	if _, err := r.from.Peek(1); !errors.Is(err, io.EOF) {
		return damaged("something follows its end")
	}
	r.summary = &end
	return nil
}

// block reads one block. The content is valid until the next call.
func (r *Reader) block() (kind byte, content []byte, err error) {
	var head [5]byte
	if _, err := io.ReadFull(r.from, head[:]); err != nil {
		return 0, nil, cut(err)
	}
	size := binary.BigEndian.Uint32(head[1:])
	if size > maxBlock {
		return 0, nil, damaged("a part of it is too large")
	}
	// Memory is taken as the content arrives: the length may be wrong.
	if r.packed.Reset(); r.packed.Cap() > 16*blockSize {
		r.packed = bytes.Buffer{}
	}
	if _, err := io.CopyN(&r.packed, r.from, int64(size)); err != nil {
		return 0, nil, cut(err)
	}
	r.sum.Write(head[:])
	r.sum.Write(r.packed.Bytes())
	r.size += int64(len(head)) + int64(size)
	return head[0], r.packed.Bytes(), nil
}

// cut explains that a file ends too early.
func cut(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return damaged("it is incomplete")
	}
	return err
}

// failed returns the reason that whoever made the backup wrote into it.
func failed(why []byte) error {
	return damaged("making it failed: %s", strings.Map(func(c rune) rune {
		if c < ' ' {
			return ' '
		}
		return c
	}, string(why)))
}

// Record decodes an object of a backup.
func Record(o *store.EncodedObject) (store.Record, error) { return codec.DecodeObject(o) }

// Verify reads a whole backup, and calls visit, which may be nil, with every item.
func Verify(from io.Reader, visit func(*store.DumpItem) error) (Header, Summary, int64, error) {
	r, err := NewReader(from)
	if err != nil {
		return Header{}, Summary{}, 0, err
	}
	defer r.Close()
	for {
		it, err := r.Next()
		if errors.Is(err, io.EOF) {
			return r.header, *r.summary, r.size, nil
		}
		if err == nil && visit != nil {
			err = visit(it)
		}
		if err != nil {
			return Header{}, Summary{}, 0, err
		}
	}
}
