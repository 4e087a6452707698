/*
 * A disk that boots, and remembers the last byte of the serial port. It answers a ? with that byte,
 * as a capital letter.
 *
 * After a change: as --32 memory.S -o memory.o && objcopy -O binary -j .text memory.o memory.bin
 */
	.code16
	mov $'-', %bl
next:	sti
	hlt			/* until the next tick */
more:	mov $0x3fd, %dx
	in %dx, %al
	test $1, %al
	jz next
	mov $0x3f8, %dx
	in %dx, %al
	cmp $'?', %al
	je tell
	mov %al, %bl
	jmp more
tell:	mov %bl, %al
	and $0xdf, %al
	out %al, %dx
	jmp more
	.org 510
	.word 0xaa55
