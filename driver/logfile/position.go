package logfile

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"syscall"

	"mariposa"
)

// The position of a line is the file that it begins in and its offset there. Rotation
// renames files, so a file is identified by its inode and, because inodes are reused, by
// its first timestamp.

// positionIn returns a position in the file with a key.
func positionIn(key string, offset int64) string {
	return key + "." + strconv.FormatInt(offset, 10)
}

// fileKey identifies a file of a log; empty if it has no line yet.
func fileKey(f *os.File) string {
	info, err := f.Stat()
	if err != nil {
		return ""
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || info.Size() == 0 {
		return ""
	}
	first, kind := "", "n"
	if timed, known := hasTimes(f); timed {
		stamp := make([]byte, stampSize)
		if n, _ := f.ReadAt(stamp, int64(len(logHeader))); n < stampSize {
			return ""
		}
		first = string(stamp[:logDigits])
		if stamp[logDigits] == stampContinues {
			kind = "c"
		}
	} else if !known {
		return ""
	}
	return fmt.Sprintf("%x.%s.%s", stat.Ino, first, kind)
}

// skipToPosition skips to a position. If its file was deleted, everything that is left is
// newer.
func (r *reader) skipToPosition(position string) {
	dot := strings.LastIndexByte(position, '.')
	if dot < 0 {
		return // the beginning
	}
	offset, err := strconv.ParseInt(position[dot+1:], 10, 64)
	if err != nil || offset < 0 {
		return
	}
	for n, f := range r.files {
		if fileKey(f) != position[:dot] {
			continue
		}
		if info, err := f.Stat(); err != nil || offset > info.Size() {
			return
		}
		_, _ = f.Seek(offset, io.SeekStart)
		r.inside = offset > logStart(f) && !endsLine(f, offset)
		closeAll(r.files[:n])
		r.files = r.files[n:]
		return
	}
}

// startPosition returns the position where reading starts; empty if it has none yet. kept
// is the number of files that there are.
func (r *reader) startPosition(kept int) string {
	if len(r.files) > 0 {
		f := r.files[0]
		at, err := f.Seek(0, io.SeekCurrent)
		if key := fileKey(f); err == nil && key != "" {
			return positionIn(key, max(at, logStart(f)))
		}
	}
	if kept > 1 {
		return ""
	}
	return mariposa.LogBeginning
}
