// Package seal keeps secrets: sealed where they are stored, masked where they
// are shown.
//
// Sealing has two layers. Every owner (a project, or the store itself for data that
// belongs to none) has one inner key, and all data of the owner is sealed with it. The
// inner key is in the store, wrapped with an outer key that is in a file outside the
// store: either is useless without the other. Changing the outer key rewraps the inner
// keys and touches nothing that they seal.
//
// The package owns keys, the data sealed with them, and the forms that a secret takes
// in a text. It does not know who may read a secret, or what a secret is for.
//
// # The key file, format 1 (2026-11-15)
//
// One JSON document, readable by its owner alone (mode 0600):
//
//	{
//	  "about": "what this file is, for the person who finds it",
//	  "format": 1,
//	  "primary": "5d0c3a7e91b24f68",
//	  "keys": [
//	    {"name": "5d0c3a7e91b24f68", "key": "32 random bytes in base64"}
//	  ]
//	}
//
// The primary key wraps new keys; the others are there only during a rotation, to open
// the keys that it has not reached yet. A key's name is derived from the key, so it
// may be shown, and a damaged key does not match its name. The file is always replaced
// whole, by renaming. Every replica needs the same file: share it, or copy it after a
// rotation.
//
// # Derived keys and sealed data (2026-11-15)
//
// Keys are never used directly: HKDF-SHA-256 with a text for each use derives the key
// that wraps, the one that seals, the one for digests, and the name. Sealed data is
// one byte for the format (1), a random nonce of 12 bytes, and the output of
// AES-256-GCM. A random nonce is safe for 2^32 seals with one key.
//
// A limit of rotation: whoever has both a former outer key and a copy of the store
// from its time has the inner keys, which stay the same.
package seal
