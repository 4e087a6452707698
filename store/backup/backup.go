// Package backup is the file format of backups: everything that a store contains, in one
// state, in the same form whichever store it came from. So a backup of SQLite can be
// restored into PostgreSQL, and the other way round.
//
// It owns the format and its checks. It does not know stores: they write the items of a
// dump (store.Dump) and read them (store.DumpSource).
//
// # Format
//
// A file begins with a line of text, "mariposa-backup FORMAT RELEASE". Blocks follow: a
// letter for the kind, the length of the content in 4 bytes, and the content.
//
//	H  the header, as JSON (Header)
//	D  items, compressed with zstd; see item.go
//	F  the backup failed; why, as text
//	E  the end, as JSON (Summary), with the SHA-256 of everything before this block
//
// A file without its last block, or with another checksum, is refused. Blocks are small
// and compressed one by one, so that reading and writing need little memory.
package backup

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"regexp"
	"time"

	"github.com/klauspost/compress/zstd"

	"mariposa/store"
)

// Format is the version of the format.
//
//	1 (2026-11): the first
const Format = 1

// magic begins every file.
const magic = "mariposa-backup"

const (
	blockHeader = 'H'
	blockItems  = 'D'
	blockFailed = 'F'
	blockEnd    = 'E'
)

const (
	blockSize = 1 << 20 // of items, before compression; an item may be larger
	maxBlock  = 1 << 30 // one commit is far smaller
	maxLine   = 200
)

// Header describes a backup.
type Header struct {
	Release     string    `json:"release"`
	Schema      int       `json:"schema"`
	Cluster     string    `json:"cluster"`
	Incarnation string    `json:"incarnation"`
	Revision    int64     `json:"revision"`
	Trimmed     int64     `json:"trimmed"`
	AuditLast   int64     `json:"audit_last"`
	AuditLag    int64     `json:"audit_lag"`
	Time        time.Time `json:"time"`
}

// Summary counts what a backup contains.
type Summary struct {
	Objects int64 `json:"objects"`
	Chunks  int64 `json:"chunks"` // commits of the change log
	Leases  int64 `json:"leases"`
	Claims  int64 `json:"claims"`
	Audit   int64 `json:"audit"` // entries of the audit log

	SHA256 string `json:"sha256"` // of everything before the last block
}

func (s *Summary) count(it *store.DumpItem) {
	switch {
	case it.Object != nil:
		s.Objects++
	case it.Chunk != nil:
		s.Chunks++
	case it.Lease != nil:
		s.Leases++
	case it.Claim != nil:
		s.Claims++
	case it.Audit != nil:
		s.Audit++
	}
}

// Writer writes a backup. Call Dump of a store with the functions of Dump, then End, or
// Fail if the dump failed.
type Writer struct {
	to      io.Writer
	release string
	sum     hash.Hash
	zstd    *zstd.Encoder
	plain   []byte
	packed  []byte
	summary Summary
	began   bool
}

// NewWriter returns a writer of a backup that this release makes. Nothing is written
// before the dump begins.
func NewWriter(to io.Writer, release string) (*Writer, error) {
	e, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedDefault), zstd.WithEncoderConcurrency(1), zstd.WithLowerEncoderMem(true))
	if err != nil {
		return nil, err
	}
	w := &Writer{release: unprintable.ReplaceAllString(release, "?"), sum: sha256.New(), zstd: e}
	w.to = io.MultiWriter(to, w.sum)
	return w, nil
}

var unprintable = regexp.MustCompile(`[^!-~]`)

// Dump returns the functions that write the dump of a store.
func (w *Writer) Dump() store.Dump { return store.Dump{Head: w.head, Item: w.item} }

func (w *Writer) head(h store.DumpHead) error {
	w.began = true
	if _, err := fmt.Fprintf(w.to, "%s %d %s\n", magic, Format, w.release); err != nil {
		return err
	}
	doc, err := json.Marshal(Header{
		Release: w.release, Schema: h.Schema, Cluster: h.Cluster, Incarnation: h.Incarnation, Revision: h.Revision, Trimmed: h.Trimmed,
		AuditLast: h.Audit.Last, AuditLag: h.Audit.Lag, Time: h.Time.UTC(),
	})
	if err != nil {
		return err
	}
	return w.block(blockHeader, doc)
}

func (w *Writer) item(it *store.DumpItem) error {
	w.summary.count(it)
	w.plain = appendItem(w.plain, it)
	if len(w.plain) < blockSize {
		return nil
	}
	return w.flush()
}

func (w *Writer) flush() error {
	if len(w.plain) == 0 {
		return nil
	}
	w.packed = w.zstd.EncodeAll(w.plain, w.packed[:0])
	err := w.block(blockItems, w.packed)
	if w.plain = w.plain[:0]; cap(w.plain) > 16*blockSize { // release the memory of one huge item
		w.plain, w.packed = nil, nil
	}
	return err
}

func (w *Writer) block(kind byte, content []byte) error {
	if len(content) > maxBlock {
		return fmt.Errorf("an item of %d bytes is too large for a backup", len(content))
	}
	head := binary.BigEndian.AppendUint32([]byte{kind}, uint32(len(content)))
	if _, err := w.to.Write(head); err != nil {
		return err
	}
	_, err := w.to.Write(content)
	return err
}

// Began reports whether anything was written.
func (w *Writer) Began() bool { return w.began }

// End writes the end of a complete backup.
func (w *Writer) End() (Summary, error) {
	if err := w.flush(); err != nil {
		return Summary{}, err
	}
	w.summary.SHA256 = hex.EncodeToString(w.sum.Sum(nil))
	doc, err := json.Marshal(w.summary)
	if err != nil {
		return Summary{}, err
	}
	return w.summary, w.block(blockEnd, doc)
}

// Fail writes that the backup failed, for whoever reads it.
func (w *Writer) Fail(why string) error { return w.block(blockFailed, []byte(why)) }

var errDamaged = errors.New("the backup is damaged")

func damaged(format string, args ...any) error {
	return fmt.Errorf("%w: %s", errDamaged, fmt.Sprintf(format, args...))
}

// IsDamaged reports whether an error means that a file is no complete backup.
func IsDamaged(err error) bool { return errors.Is(err, errDamaged) }
