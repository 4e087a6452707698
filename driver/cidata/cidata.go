// Package cidata builds the small disk from which cloud-init reads the configuration of a machine
// (its data source NoCloud): a file system of ISO 9660 with the label cidata, and with the names of
// Joliet, because those of ISO 9660 itself have no hyphens. It does not know what the files mean.
package cidata

import (
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf16"
)

// Label is the label by which cloud-init finds the disk.
const Label = "cidata"

const sector = 2048

// These are the sectors of the image. Files follow.
const (
	primarySector = 16 + iota
	jolietSector
	endSector
	pathsLittle
	pathsBig
	jolietLittle
	jolietBig
	primaryRoot
	jolietRoot
	firstFile
)

// maxFiles is how many files fit into a directory of one sector.
const maxFiles = 15

// Build returns an image with files in its root directory. The names of files have at most 30
// characters.
func Build(files map[string][]byte, at time.Time) ([]byte, error) {
	if len(files) > maxFiles {
		return nil, fmt.Errorf("a disk for cloud-init has at most %d files, not %d", maxFiles, len(files))
	}
	image := make([]byte, firstFile*sector)
	short, long := &directory{at: at}, &directory{at: at}
	short.add("\x00", primaryRoot, sector, true)
	short.add("\x01", primaryRoot, sector, true)
	long.add("\x00", jolietRoot, sector, true)
	long.add("\x01", jolietRoot, sector, true)
	for n, name := range slices.Sorted(maps.Keys(files)) {
		if name == "" || len(name) > 30 || strings.ContainsAny(name, "/;") {
			return nil, fmt.Errorf("a disk for cloud-init cannot have a file %q", name)
		}
		content := files[name]
		place := len(image) / sector
		short.add(fmt.Sprintf("FILE%02d.;1", n), place, len(content), false)
		long.add(wide(name), place, len(content), false)
		image = append(image, content...)
		image = append(image, make([]byte, (sector-len(content)%sector)%sector)...)
	}
	size := len(image) / sector
	put := func(at int, content []byte) { copy(image[at*sector:(at+1)*sector], content) }
	put(primarySector, descriptor(1, size, Label, primaryRoot, pathsLittle, pathsBig, at))
	put(jolietSector, descriptor(2, size, wide(Label), jolietRoot, jolietLittle, jolietBig, at))
	put(endSector, []byte("\xffCD001\x01"))
	for little, root := range map[int]int{pathsLittle: primaryRoot, jolietLittle: jolietRoot} {
		put(little, pathTable(binary.LittleEndian, root))
		put(little+1, pathTable(binary.BigEndian, root))
	}
	put(primaryRoot, short.records)
	put(jolietRoot, long.records)
	return image, nil
}

// wide encodes a text as Joliet does.
func wide(text string) string {
	var b []byte
	for _, c := range utf16.Encode([]rune(text)) {
		b = binary.BigEndian.AppendUint16(b, c)
	}
	return string(b)
}

// both encodes a number in both byte orders.
func both(n int) []byte {
	b := binary.LittleEndian.AppendUint32(nil, uint32(n)) //nolint:gosec // images are small
	return binary.BigEndian.AppendUint32(b, uint32(n))    //nolint:gosec // the same
}

func bothShort(n int) []byte {
	b := binary.LittleEndian.AppendUint16(nil, uint16(n)) //nolint:gosec // a constant
	return binary.BigEndian.AppendUint16(b, uint16(n))    //nolint:gosec // the same
}

// directory is a list of directory records.
type directory struct {
	at      time.Time
	records []byte
}

func (d *directory) add(name string, place, size int, isDirectory bool) {
	d.records = append(d.records, record(name, place, size, isDirectory, d.at)...)
}

// record is a directory record.
func record(name string, place, size int, isDirectory bool, at time.Time) []byte {
	b := []byte{0, 0}
	b = append(append(b, both(place)...), both(size)...)
	at = at.UTC()
	b = append(b, byte(at.Year()-1900), byte(at.Month()), byte(at.Day()), byte(at.Hour()), byte(at.Minute()), byte(at.Second()), 0) //nolint:gosec // a date
	flags := byte(0)
	if isDirectory {
		flags = 2
	}
	b = append(b, flags, 0, 0)
	b = append(b, bothShort(1)...)
	b = append(b, byte(len(name)))
	b = append(b, name...)
	if len(b)%2 > 0 {
		b = append(b, 0)
	}
	b[0] = byte(len(b)) //nolint:gosec // names are short
	return b
}

// pathTable has the root directory only.
func pathTable(order binary.AppendByteOrder, root int) []byte {
	b := []byte{1, 0}
	b = order.AppendUint32(b, uint32(root)) //nolint:gosec // a constant
	b = order.AppendUint16(b, 1)
	return append(b, 0, 0)
}

// descriptor is a volume descriptor: the primary one, or that of Joliet.
func descriptor(kind byte, size int, label string, root, little, big int, at time.Time) []byte {
	text := func(s string, width int) []byte { // padded with spaces
		pad := " "
		if kind == 2 {
			pad = "\x00 "
		}
		for len(s) < width {
			s += pad
		}
		return []byte(s[:width])
	}
	b := append([]byte{kind}, "CD001\x01\x00"...)
	b = append(b, text("", 32)...)    // system
	b = append(b, text(label, 32)...) // volume
	b = append(b, make([]byte, 8)...) // unused
	b = append(b, both(size)...)      // sectors
	escapes := make([]byte, 32)       // of the character set
	if kind == 2 {
		copy(escapes, "%/E") // UCS-2, level 3
	}
	b = append(b, escapes...)
	b = append(b, bothShort(1)...)                          // volumes
	b = append(b, bothShort(1)...)                          // the number of this one
	b = append(b, bothShort(sector)...)                     // bytes of a sector
	b = append(b, both(10)...)                              // bytes of the path table
	b = binary.LittleEndian.AppendUint32(b, uint32(little)) //nolint:gosec // a constant
	b = append(b, make([]byte, 4)...)
	b = binary.BigEndian.AppendUint32(b, uint32(big)) //nolint:gosec // the same
	b = append(b, make([]byte, 4)...)
	b = append(b, record("\x00", root, sector, true, at)...)
	b = append(b, text("", 128+128+128+128)...) // volume set, publisher, preparer, application
	b = append(b, text("", 37+37+37)...)        // files with the copyright, the abstract and the bibliography
	stamp := at.UTC().Format("20060102150405") + "00\x00"
	b = append(b, stamp+stamp...)                    // created, modified
	b = append(b, strings.Repeat("0", 16)+"\x00"...) // expires never
	b = append(b, stamp...)                          // effective
	return append(b, 1)                              // version
}
